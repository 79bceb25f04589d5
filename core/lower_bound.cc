#include "core/lower_bound.h"

#include <algorithm>
#include <numeric>

#include "core/placement.h"

namespace reprise::internal {
namespace {

using LiveBytes = std::array<int64_t, kNumStorages>;

// When each command runs if the first lane of `ranking` that can go on always does.
std::vector<int32_t> RunByRank(const Schedule& schedule,
                               const std::array<std::vector<int32_t>, kNumLanes>& lane_commands,
                               const std::vector<int>& ranking) {
  std::vector<int32_t> times(schedule.commands.size(), -1);
  std::array<size_t, kNumLanes> next = {};
  const auto can_run = [&](int lane) {
    if (next[lane] == lane_commands[lane].size()) return false;
    const std::vector<Wait>& waits = schedule.commands[lane_commands[lane][next[lane]]].waits;
    return std::all_of(waits.begin(), waits.end(), [&](const Wait& w) { return times[w.command.value()] >= 0; });
  };
  for (size_t time = 0; time < times.size(); ++time) {
    const int lane = *std::find_if(ranking.begin(), ranking.end(), can_run);
    times[lane_commands[lane][next[lane]++]] = static_cast<int32_t>(time);
  }
  return times;
}

LiveBytes MostLiveBytesAt(const Plan& plan, const std::vector<Life>& lives, const std::vector<int32_t>& times) {
  std::array<std::vector<int64_t>, kNumStorages> changes;  // of live bytes, by time
  for (int s = 0; s < kNumStorages; ++s) {
    if (IsTransient(static_cast<Storage>(s))) changes[s].assign(times.size() + 1, 0);
  }
  for (const Life& life : lives) {
    int32_t first = static_cast<int32_t>(times.size()), last = -1;
    for (int lane = 0; lane < kNumLanes; ++lane) {
      if (life.first[lane] < 0) continue;
      first = std::min(first, times[life.first[lane]]);
      last = std::max(last, times[life.last[lane]]);
    }
    const Buffer& buffer = plan.buffer(life.buffer);
    std::vector<int64_t>& change = changes[static_cast<int>(buffer.storage)];
    change[first] += PaddedBytes(buffer.num_bytes);
    change[last + 1] -= PaddedBytes(buffer.num_bytes);
  }
  LiveBytes most = {};
  for (int s = 0; s < kNumStorages; ++s) {
    int64_t live = 0;
    for (const int64_t change : changes[s]) most[s] = std::max(most[s], live += change);
  }
  return most;
}

}  // namespace

LiveBytes MostLiveBytes(const Plan& plan, const Schedule& schedule, const std::vector<Life>& lives) {
  std::array<std::vector<int32_t>, kNumLanes> lane_commands;
  for (size_t i = 0; i < schedule.commands.size(); ++i) {
    lane_commands[static_cast<int>(schedule.commands[i].lane)].push_back(static_cast<int32_t>(i));
  }
  std::vector<int> ranking;
  for (int lane = 0; lane < kNumLanes; ++lane) {
    if (!lane_commands[lane].empty()) ranking.push_back(lane);
  }
  std::vector<int32_t> issue_order(schedule.commands.size());
  std::iota(issue_order.begin(), issue_order.end(), 0);
  LiveBytes most = MostLiveBytesAt(plan, lives, issue_order);
  do {
    const LiveBytes live = MostLiveBytesAt(plan, lives, RunByRank(schedule, lane_commands, ranking));
    for (int s = 0; s < kNumStorages; ++s) most[s] = std::max(most[s], live[s]);
  } while (std::next_permutation(ranking.begin(), ranking.end()));
  return most;
}

}  // namespace reprise::internal
