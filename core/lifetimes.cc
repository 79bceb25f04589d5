#include "core/lifetimes.h"

#include <algorithm>
#include <array>

namespace reprise::internal {
namespace {

// Are all uses of the life so far complete before the command starts?
bool CompleteBefore(const Life& life, const Clock& start) {
  for (int lane = 0; lane < kNumLanes; ++lane) {
    if (start[lane] < life.last[lane]) return false;
  }
  return true;
}

int LaneOf(int32_t command, const HappensBefore& order) {
  const Clock& end = order.End(CommandId(command));
  return static_cast<int>(std::find(end.begin(), end.end(), command) - end.begin());
}

// Do all uses come after the one that is issued first?
bool FollowsStart(const Life& life, const HappensBefore& order) {
  const auto follows = [&](int32_t first) {
    return first < 0 || first == life.start || order.Ordered(CommandId(life.start), CommandId(first));
  };
  return std::all_of(life.first.begin(), life.first.end(), follows);
}

class LifeFinder {
 public:
  LifeFinder(const Plan& plan, const HappensBefore& order)
      : plan_(plan), order_(order), open_(plan.buffers.size(), -1) {}

  void Use(BufferId id, CommandId command, Lane lane, bool assigned_by_gather) {
    const Buffer& buffer = plan_.buffer(id);
    if (!IsTransient(buffer.storage) || buffer.num_bytes == 0) return;
    int32_t& open = open_[id.value()];
    if (open < 0 || (assigned_by_gather && CompleteBefore(lives_[open], order_.Start(command)))) {
      open = static_cast<int32_t>(lives_.size());
      lives_.push_back({id, command.value()});
    }
    Life& life = lives_[open];
    const int l = static_cast<int>(lane);
    if (life.first[l] < 0) life.first[l] = command.value();
    life.last[l] = command.value();
  }
  void Use(const ScheduleState& state, CommandId command) {
    for (const Resident& resident : state.residents) Use(resident.buffer, command, Lane::kCompute, false);
    for (const OutstandingReduction& reduction : state.outstanding) {
      Use(reduction.wire, command, Lane::kCompute, false);
    }
  }

  std::vector<Life> Finish() { return std::move(lives_); }

 private:
  const Plan& plan_;
  const HappensBefore& order_;
  std::vector<int32_t> open_;  // by buffer: its latest life; -1 before the first
  std::vector<Life> lives_;
};

}  // namespace

HappensBefore OrderOf(const Schedule& schedule) {
  HappensBefore order;
  for (const ScheduledCommand& command : schedule.commands) order.Add(command.lane, command.waits);
  return order;
}

std::vector<Life> FindLives(const Plan& plan, const Schedule& schedule, const HappensBefore& order) {
  if (schedule.commands.empty()) return {};
  LifeFinder finder(plan, order);
  finder.Use(schedule.start, CommandId(0));
  for (size_t i = 0; i < schedule.commands.size(); ++i) {
    const ScheduledCommand& command = schedule.commands[i];
    const bool gather = std::holds_alternative<AllGather>(command.command);
    for (const BufferUse& use : command.uses) {
      if (use.num_bytes == 0) continue;
      finder.Use(use.buffer, CommandId(static_cast<int64_t>(i)), command.lane,
                 gather && use.access == Access::kAssign);
    }
  }
  finder.Use(schedule.end, CommandId(static_cast<int64_t>(schedule.commands.size()) - 1));
  return finder.Finish();
}

// Along a lane, clocks only grow, so the starts that are not ordered after all uses of a life are the first few of their
// lane: one point for each lane describes them.
Spans FindSpans(const std::vector<Life>& lives, const HappensBefore& order, int32_t first_point) {
  std::vector<int32_t> points;  // commands
  std::array<std::vector<int32_t>, kNumLanes> lane_points;
  for (const Life& life : lives) points.push_back(life.start);
  std::sort(points.begin(), points.end());
  points.erase(std::unique(points.begin(), points.end()), points.end());
  const auto point_of = [&](int32_t command) {
    return first_point + static_cast<int32_t>(std::lower_bound(points.begin(), points.end(), command) - points.begin());
  };
  for (const int32_t command : points) lane_points[LaneOf(command, order)].push_back(command);
  Spans result;
  result.end_point = first_point + static_cast<int32_t>(points.size());
  for (const Life& life : lives) {
    Span& span = result.spans.emplace_back();
    // Uses that do not follow the first one may come before any start: the life then lasts for the whole schedule.
    const bool follows = FollowsStart(life, order);
    const int32_t start = follows ? life.start : points.front();
    span.begin = point_of(start);
    span.lane = LaneOf(start, order);
    for (int lane = 0; lane < kNumLanes; ++lane) {
      const std::vector<int32_t>& starts = lane_points[lane];
      const auto ordered = std::partition_point(starts.begin(), starts.end(), [&](int32_t command) {
        return !follows || !CompleteBefore(life, order.Start(CommandId(command)));
      });
      span.until[lane] = ordered == starts.begin() ? -1 : point_of(*std::prev(ordered));
    }
  }
  return result;
}

}  // namespace reprise::internal
