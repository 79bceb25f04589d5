// Graphs made of schedules, with and without mistakes.
#include "graph/cuda/graph_order.h"

#include <algorithm>
#include <random>
#include <vector>

#include "core/plan/happens_before.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise::internal {
namespace {

struct Made {
  std::vector<CommandId> work;
  std::vector<GraphEdge> edges;
};

// Random lanes and waits; a wait may be implied by others.
Schedule RandomSchedule(std::mt19937& random, int commands) {
  Schedule schedule;
  for (int c = 0; c < commands; ++c) {
    ScheduledCommand command;
    command.lane = static_cast<Lane>(random() % kNumLanes);
    if (c > 0 && random() % 2 == 0) command.waits.push_back({CommandId(static_cast<int32_t>(random() % c))});
    schedule.commands.push_back(command);
  }
  return schedule;
}

// As a capture makes it: each command is a chain of up to three nodes, or none; each starts after the last node of its
// lane and of what it waits for. Some nodes only order others.
Made Capture(const Schedule& schedule, std::mt19937& random) {
  Made made;
  std::vector<std::vector<int>> lane_tails(kNumLanes), ends(schedule.commands.size());
  for (size_t c = 0; c < schedule.commands.size(); ++c) {
    const ScheduledCommand& command = schedule.commands[c];
    std::vector<int>& tails = lane_tails[static_cast<int>(command.lane)];
    for (const Wait& wait : command.waits) {
      const std::vector<int>& end = ends[wait.command.value()];
      tails.insert(tails.end(), end.begin(), end.end());
    }
    for (int n = static_cast<int>(random() % 4); n > 0; --n) {
      const int node = static_cast<int>(made.work.size());
      made.work.push_back(random() % 5 == 0 ? CommandId() : CommandId(static_cast<int32_t>(c)));
      for (const int tail : tails) made.edges.push_back({tail, node});
      tails = {node};
    }
    ends[c] = tails;
  }
  return made;
}

TEST(GraphOrderTest, ACaptureOrdersWhatItsScheduleOrders) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const Schedule schedule = RandomSchedule(random, 1 + static_cast<int>(random() % 60));
    const Made made = Capture(schedule, random);
    const OrderDifference difference = CompareOrder(schedule, made.work, made.edges);
    EXPECT_EQ(difference.lost, 0) << "seed " << seed;
    EXPECT_EQ(difference.added, 0) << "seed " << seed;
  }
}

// By the definition: paths, pair by pair.
OrderDifference ByPaths(const Schedule& schedule, const Made& made) {
  const size_t n = made.work.size();
  std::vector<std::vector<bool>> path(n, std::vector<bool>(n));
  for (const GraphEdge& edge : made.edges) path[edge.from][edge.to] = true;
  for (size_t via = 0; via < n; ++via) {
    for (size_t from = 0; from < n; ++from) {
      for (size_t to = 0; to < n; ++to) path[from][to] = path[from][to] || (path[from][via] && path[via][to]);
    }
  }
  HappensBefore planned;
  for (const ScheduledCommand& command : schedule.commands) planned.Add(command.lane, command.waits);
  OrderDifference difference;
  for (size_t from = 0; from < n; ++from) {
    for (size_t to = 0; to < n; ++to) {
      if (!made.work[from].valid() || !made.work[to].valid() || made.work[from] == made.work[to]) continue;
      const bool ordered = planned.Ordered(made.work[from], made.work[to]);
      difference.lost += ordered && !path[from][to] ? 1 : 0;
      difference.added += !ordered && path[from][to] ? 1 : 0;
    }
  }
  return difference;
}

TEST(GraphOrderTest, MistakesAreCountedAsPathsSay) {
  int lost = 0, added = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const Schedule schedule = RandomSchedule(random, 25);
    Made made = Capture(schedule, random);
    if (made.work.size() < 2 || made.edges.empty()) continue;
    if (seed % 2 == 0) {
      made.edges.erase(made.edges.begin() + static_cast<int64_t>(random() % made.edges.size()));
    } else {
      const int a = static_cast<int>(random() % made.work.size()), b = static_cast<int>(random() % made.work.size());
      if (a != b) made.edges.push_back({std::min(a, b), std::max(a, b)});  // nodes are numbered in issue order
    }
    const OrderDifference got = CompareOrder(schedule, made.work, made.edges), want = ByPaths(schedule, made);
    EXPECT_EQ(got.lost, want.lost) << "seed " << seed;
    EXPECT_EQ(got.added, want.added) << "seed " << seed;
    EXPECT_EQ(got.lost_first.valid(), want.lost > 0);
    EXPECT_EQ(got.added_second.valid(), want.added > 0);
    lost += want.lost > 0 ? 1 : 0;
    added += want.added > 0 ? 1 : 0;
  }
  EXPECT_GT(lost, 20) << "or the test shows nothing";
  EXPECT_GT(added, 20) << "or the test shows nothing";
}

// More nodes than one block of the computation has columns.
TEST(GraphOrderTest, LargeGraphs) {
  constexpr int kCommands = 10000;
  Schedule schedule;
  Made made;
  for (int c = 0; c < kCommands; ++c) {
    ScheduledCommand command;
    command.lane = static_cast<Lane>(c % 2);
    if (c == kCommands - 1) command.waits.push_back({CommandId(c - 1)});
    schedule.commands.push_back(command);
    made.work.push_back(CommandId(c));
    if (c >= 2) made.edges.push_back({c - 2, c});
  }
  OrderDifference difference = CompareOrder(schedule, made.work, made.edges);
  EXPECT_EQ(difference.lost, kCommands / 2) << "the last command's wait has no edge";
  EXPECT_EQ(difference.lost_second, CommandId(kCommands - 1));
  EXPECT_EQ(difference.added, 0);
  made.edges.push_back({kCommands - 2, kCommands - 1});
  difference = CompareOrder(schedule, made.work, made.edges);
  EXPECT_EQ(difference.lost, 0);
  // Ten first commands of one lane, and what follows them, before the eleventh of the other and what follows it.
  made.edges.push_back({18, 21});
  difference = CompareOrder(schedule, made.work, made.edges);
  EXPECT_EQ(difference.lost, 0);
  EXPECT_EQ(difference.added, 10 * (kCommands / 2 - 10 - 1)) << "the last command comes after all of them anyway";
  EXPECT_EQ(difference.added_second, CommandId(21));
}

}  // namespace
}  // namespace reprise::internal
