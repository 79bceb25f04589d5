#include "core/planner/memory/lower_bound.h"

#include <algorithm>

#include "core/planner/memory/placement.h"

namespace reprise::internal {
namespace {

using LiveBytes = std::array<int64_t, kNumStorages>;

// When each command begins and completes: one completes at each time, after all that begin then have begun.
struct Times {
  std::vector<int32_t> begins, completes;
};

class Run {
 public:
  Run(const Schedule& schedule, const HappensBefore& order) : schedule_(schedule), order_(order) {
    for (size_t i = 0; i < schedule.commands.size(); ++i) {
      lanes_[static_cast<int>(schedule.commands[i].lane)].push_back(static_cast<int32_t>(i));
    }
  }

  const std::array<std::vector<int32_t>, kNumLanes>& lanes() const { return lanes_; }

  // `first(a, b)` says whether, of two commands that have begun, a completes before b.
  template <class First>
  Times Complete(First first) const {
    const size_t num_commands = schedule_.commands.size();
    Times times = {std::vector<int32_t>(num_commands, -1), std::vector<int32_t>(num_commands, -1)};
    std::array<size_t, kNumLanes> next = {};
    Clock completed = {-1, -1, -1, -1};
    for (size_t time = 0; time < num_commands; ++time) {
      int32_t chosen = -1;
      for (int lane = 0; lane < kNumLanes; ++lane) {
        if (next[lane] == lanes_[lane].size()) continue;
        const int32_t command = lanes_[lane][next[lane]];
        if (times.begins[command] < 0 && MayBegin(command, completed))
          times.begins[command] = static_cast<int32_t>(time);
        if (times.begins[command] >= 0 && (chosen < 0 || first(command, chosen))) chosen = command;
      }
      times.completes[chosen] = static_cast<int32_t>(time);
      const int lane = static_cast<int>(schedule_.commands[chosen].lane);
      completed[lane] = chosen;
      ++next[lane];
    }
    return times;
  }

 private:
  bool MayBegin(int32_t command, const Clock& completed) const {
    const Clock& needed = order_.Start(CommandId(command));
    for (int lane = 0; lane < kNumLanes; ++lane) {
      if (completed[lane] < needed[lane]) return false;
    }
    return true;
  }

  const Schedule& schedule_;
  const HappensBefore& order_;
  std::array<std::vector<int32_t>, kNumLanes> lanes_;  // their commands
};

void RaiseToLiveBytes(const Plan& plan, const std::vector<Life>& lives, const Times& times, LiveBytes& most) {
  std::array<std::vector<int64_t>, kNumStorages> changes;  // of live bytes, by time
  for (int s = 0; s < kNumStorages; ++s) {
    if (IsTransient(static_cast<Storage>(s))) changes[s].assign(times.begins.size() + 1, 0);
  }
  for (const Life& life : lives) {
    int32_t begin = static_cast<int32_t>(times.begins.size()), end = -1;
    for (int lane = 0; lane < kNumLanes; ++lane) {
      if (life.first[lane] < 0) continue;
      begin = std::min(begin, times.begins[life.first[lane]]);
      end = std::max(end, times.completes[life.last[lane]]);
    }
    const Buffer& buffer = plan.buffer(life.buffer);
    std::vector<int64_t>& change = changes[static_cast<int>(buffer.storage)];
    change[begin] += PaddedBytes(buffer.num_bytes);
    change[end + 1] -= PaddedBytes(buffer.num_bytes);
  }
  for (int s = 0; s < kNumStorages; ++s) {
    int64_t live = 0;
    for (const int64_t change : changes[s]) most[s] = std::max(most[s], live += change);
  }
}

}  // namespace

LiveBytes MostLiveBytes(const Plan& plan, const Schedule& schedule, const HappensBefore& order,
                        const std::vector<Life>& lives) {
  LiveBytes most = {};
  if (lives.empty()) return most;
  const Run run(schedule, order);
  RaiseToLiveBytes(plan, lives, run.Complete([](int32_t a, int32_t b) { return a < b; }), most);
  std::array<int, kNumLanes> rank = {};  // by lane
  std::vector<int> used;
  for (int lane = 0; lane < kNumLanes; ++lane) {
    if (!run.lanes()[lane].empty()) used.push_back(lane);
  }
  do {
    for (size_t i = 0; i < used.size(); ++i) rank[used[i]] = static_cast<int>(i);
    const auto first = [&](int32_t a, int32_t b) {
      return rank[static_cast<int>(schedule.commands[a].lane)] < rank[static_cast<int>(schedule.commands[b].lane)];
    };
    RaiseToLiveBytes(plan, lives, run.Complete(first), most);
  } while (std::next_permutation(used.begin(), used.end()));
  return most;
}

}  // namespace reprise::internal
