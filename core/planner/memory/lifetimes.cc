#include "core/planner/memory/lifetimes.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace reprise::internal {
namespace {

// Are all uses of the life so far complete before the command starts?
bool CompleteBefore(const Life& life, const Clock& start) {
  for (int lane = 0; lane < kNumLanes; ++lane) {
    if (start[lane] < life.last[lane]) return false;
  }
  return true;
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
      Use(reduction.buffer, command, Lane::kCompute, false);
    }
  }

  std::vector<Life> Finish() { return std::move(lives_); }

 private:
  const Plan& plan_;
  const HappensBefore& order_;
  std::vector<int32_t> open_;  // by buffer: its latest life; -1 before the first
  std::vector<Life> lives_;
};

// The points of one lane, and when the commands there may start. Along a lane clocks only grow, so the points that are
// not ordered after a life are the first few: the last of them describes them.
struct LanePoints {
  std::vector<int32_t> points;
  std::array<std::vector<int32_t>, kNumLanes> clocks;  // by lane, then by point

  void Add(int32_t point, const Clock& start) {
    points.push_back(point);
    for (int lane = 0; lane < kNumLanes; ++lane) clocks[lane].push_back(start[lane]);
  }
  // The last point that is not ordered after all the last uses; -1 if there is none.
  int32_t LastBefore(const Clock& last) const {
    std::ptrdiff_t before = 0;
    for (int lane = 0; lane < kNumLanes; ++lane) {
      if (last[lane] < 0) continue;
      const auto ordered = std::lower_bound(clocks[lane].begin() + before, clocks[lane].end(), last[lane]);
      before = ordered - clocks[lane].begin();
    }
    return before == 0 ? -1 : points[before - 1];
  }
  int32_t Last() const { return points.empty() ? -1 : points.back(); }
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
      finder.Use(use.buffer, CommandId(static_cast<int64_t>(i)), command.lane, gather && use.access == Access::kAssign);
    }
  }
  finder.Use(schedule.end, CommandId(static_cast<int64_t>(schedule.commands.size()) - 1));
  return finder.Finish();
}

Spans FindSpans(const std::vector<Life>& lives, const HappensBefore& order, int32_t first_point) {
  Spans result;
  result.end_point = first_point;
  std::array<LanePoints, kNumLanes> lanes;
  int32_t latest = -1;
  for (const Life& life : lives) {
    if (life.start != latest) {
      latest = life.start;
      lanes[life.lane()].Add(result.end_point++, order.Start(CommandId(life.start)));
    }
    result.spans.push_back({result.end_point - 1, life.lane(), {}});
  }
  for (size_t i = 0; i < lives.size(); ++i) {
    // Uses that do not follow the first one may come before any other life: such a life lasts for the whole schedule.
    const bool follows = FollowsStart(lives[i], order);
    if (!follows) result.spans[i] = {first_point, lives.front().lane(), {}};
    for (int lane = 0; lane < kNumLanes; ++lane) {
      result.spans[i].until[lane] = follows ? lanes[lane].LastBefore(lives[i].last) : lanes[lane].Last();
    }
  }
  return result;
}

}  // namespace reprise::internal
