// When the buffers of the transient arenas hold something, in the partial order of a schedule.
#ifndef REPRISE_CORE_PLANNER_MEMORY_LIFETIMES_H_
#define REPRISE_CORE_PLANNER_MEMORY_LIFETIMES_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/plan/happens_before.h"
#include "reprise/core/plan.h"

namespace reprise::internal {

HappensBefore OrderOf(const Schedule& schedule);

// A span of use of one buffer. Its bytes are free before it and after it.
struct Life {
  BufferId buffer;
  int32_t start = -1;              // the command, of all that use it, that is issued first
  Clock first = {-1, -1, -1, -1};  // by lane: the first command there that uses it; -1 for none
  Clock last = {-1, -1, -1, -1};   // by lane: the last one

  // Of `start`.
  int lane() const { return static_cast<int>(std::find(first.begin(), first.end(), start) - first.begin()); }
};

// Lives of buffers with bytes, by start. A buffer that the schedule starts (ends) with is in use by Begin (End). An
// all-gather that assigns a buffer, and is ordered after all its uses so far, starts another life of it.
std::vector<Life> FindLives(const Plan& plan, const Schedule& schedule, const HappensBefore& order);

// A life in points: the commands that start lives, numbered in issue order.
struct Span {
  int32_t begin = 0;
  int lane = 0;                            // of the command at `begin`
  std::array<int32_t, kNumLanes> until{};  // by lane: the last point there that is not ordered after the life; -1: none

  // The last point, on any lane, that is not ordered after the life.
  int32_t end() const { return *std::max_element(until.begin(), until.end()); }
};

// May both be in use at once in some legal order? Exactly if of two lives the one that begins later, in issue order,
// may begin before all uses of the other are complete.
inline bool Interfere(const Span& a, const Span& b) {
  return a.begin <= b.begin ? b.begin <= a.until[b.lane] : a.begin <= b.until[a.lane];
}

// Spans of lives that share an arena and are given by start, by life. Points are numbered from `first_point`.
struct Spans {
  int32_t end_point = 0;  // one after the last
  std::vector<Span> spans;
};
Spans FindSpans(const std::vector<Life>& lives, const HappensBefore& order, int32_t first_point);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_PLANNER_MEMORY_LIFETIMES_H_
