// The founding system's overlap figures: four Linear(16384, 16384) units in bf16 with ReLU between, 8192 tokens, the
// input's gradient kept, two ranks, two weight slots. A collective counts as overlapped if compute covers at least
// kOverlappedFraction of its time.
//
// What cannot overlap: the graph's first gather and its last reduction. The founding system also waits for the first
// gather of each backward, so that it overlaps 6 of 8 and 12 of 16 gathers, and 6 of 8 reductions; the figures here are
// at least those.
#include <algorithm>
#include <iostream>
#include <map>
#include <set>
#include <string>

#include "bench/step/workloads.h"
#include "graph/step_runner.h"
#include "reprise/core/overlap.h"
#include "reprise/core/planner.h"
#include "tests/graph/cuda/cuda_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

constexpr int kReplays = 20;

struct Counts {
  int gathers = 0, overlapped_gathers = 0, reductions = 0, overlapped_reductions = 0;
};

// Every command waits for the one before it, as if there were one lane.
Plan InOneLane(Plan plan) {
  for (Schedule& schedule : plan.schedules) {
    for (size_t c = 1; c < schedule.commands.size(); ++c) {
      ScheduledCommand& command = schedule.commands[c];
      command.waits.clear();
      if (command.lane == schedule.commands[c - 1].lane) continue;
      command.waits.push_back({CommandId(static_cast<int64_t>(c) - 1), WaitReason::kOrder});
    }
  }
  return plan;
}

class OverlapTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharesDevice()) GTEST_SKIP() << "ranks that take turns on a device overlap nothing";
    REPRISE_ASSERT_OK_AND_ASSIGN(world_, NewCudaWorld());
  }

  absl::StatusOr<Plan> MakePlan(PlanOptions options) {
    options.weight_slots = 2;
    options.optimizer_states = 0;
    REPRISE_ASSIGN_OR_RETURN(
        workload_, bench::MakeWorkload("seed4", /*external=*/options.microbatches_per_graph.value_or(1) == 1));
    return PlanTraining(workload_.model, world_->size(), options);
  }

  // Replays the plan's first graph kReplays times and once before, when ranks may start apart.
  absl::StatusOr<Timeline> Profile(const Plan& plan, Execution execution) {
    REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<internal::StepRunner> runner,
                             internal::StepRunner::Create(internal::MachineOf(world_), plan, workload_.compute));
    REPRISE_RETURN_IF_ERROR(runner->Record(execution));
    REPRISE_RETURN_IF_ERROR(world_->StartProfile(plan));
    for (int replay = 0; replay <= kReplays; ++replay) {
      REPRISE_RETURN_IF_ERROR(runner->BeginStep());
      REPRISE_RETURN_IF_ERROR(runner->ReplayFirst());
    }
    REPRISE_ASSIGN_OR_RETURN(Timeline timeline, world_->StopProfile());
    std::erase_if(timeline.spans, [](const CommandSpan& span) { return span.replay == 0; });
    REPRISE_ASSIGN_OR_RETURN(results_, runner->ReadAccumulators());
    return timeline;
  }

  // Of each rank and replay. Prints the least covered fraction of each command.
  absl::StatusOr<std::map<std::pair<int, int>, Counts>> Count(const Plan& plan, const Timeline& timeline) {
    REPRISE_ASSIGN_OR_RETURN(const OverlapReport report, AnalyzeOverlap(plan, timeline));
    std::map<std::pair<int, int>, Counts> counts;
    std::map<CommandId, double> least;
    for (const CommunicationSpan& span : report.communication) {
      Counts& c = counts[{span.rank, span.replay}];
      const Command& command = plan.schedules[span.schedule].commands[span.command.value()].command;
      const int overlapped = span.covered_fraction() >= kOverlappedFraction ? 1 : 0;
      const bool is_gather = std::holds_alternative<AllGather>(command);
      (is_gather ? c.gathers : c.reductions) += 1;
      (is_gather ? c.overlapped_gathers : c.overlapped_reductions) += overlapped;
      const auto [entry, is_new] = least.emplace(span.command, span.covered_fraction());
      if (!is_new) entry->second = std::min(entry->second, span.covered_fraction());
    }
    for (const auto& [command, fraction] : least) {
      std::cout << Describe(plan, plan.schedules[plan.first].commands[command.value()].command) << ": " << fraction
                << "\n";
    }
    return counts;
  }

  void ExpectEveryReplay(const PlanOptions& options, const Counts& want) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(options));
    REPRISE_ASSERT_OK_AND_ASSIGN(const Timeline timeline, Profile(plan, Execution::kGraph));
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto counts, Count(plan, timeline));
    EXPECT_EQ(counts.size(), static_cast<size_t>(world_->size() * kReplays));
    for (const auto& [key, got] : counts) {
      SCOPED_TRACE("rank " + std::to_string(key.first) + ", replay " + std::to_string(key.second));
      EXPECT_EQ(got.gathers, want.gathers);
      EXPECT_EQ(got.reductions, want.reductions);
      EXPECT_GE(got.overlapped_gathers, want.overlapped_gathers);
      EXPECT_GE(got.overlapped_reductions, want.overlapped_reductions);
    }
  }

  std::shared_ptr<World> world_;
  bench::Workload workload_;
  std::string results_;
};

TEST_F(OverlapTest, OneMicrobatchPerGraph) { ExpectEveryReplay({.residency = Residency::kOff}, {8, 7, 4, 3}); }

TEST_F(OverlapTest, TwoMicrobatchesPerGraphAndTheSameBytesWithResidency) {
  ExpectEveryReplay({.microbatches_per_graph = 2, .residency = Residency::kOff}, {16, 15, 8, 7});
  const std::string without = results_;
  ExpectEveryReplay({.microbatches_per_graph = 2, .residency = Residency::kKeep}, {10, 9, 8, 7});
  EXPECT_TRUE(results_ == without);
  EXPECT_FALSE(without.empty());
}

TEST_F(OverlapTest, NoGatherOverlapsWithoutPrefetch) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan({.prefetch_depth = 0, .residency = Residency::kOff}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const Timeline timeline, Profile(plan, Execution::kGraph));
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto counts, Count(plan, timeline));
  for (const auto& [key, got] : counts) EXPECT_EQ(got.overlapped_gathers, 0);
}

TEST_F(OverlapTest, CopyEnginesGatherWithoutKernels) {
  REPRISE_ASSERT_OK_AND_ASSIGN(
      const Plan plan, MakePlan({.residency = Residency::kOff, .transports = EveryUnit(Transport::kCopyEngine)}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const Timeline timeline, Profile(plan, Execution::kGraph));
  int collectives = 0;
  for (const CommandSpan& span : timeline.spans) {
    const Command& command = plan.schedules[span.schedule].commands[span.command.value()].command;
    if (!std::holds_alternative<AllGather>(command) && !std::holds_alternative<ReduceScatter>(command)) continue;
    ++collectives;
    for (const Activity& activity : span.activities) EXPECT_NE(activity.kind, ActivityKind::kKernel) << activity.name;
  }
  EXPECT_EQ(collectives, world_->size() * kReplays * (8 + 4));
}

// The check of the figures can fail.
TEST_F(OverlapTest, NothingOverlapsInOneLane) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan({.residency = Residency::kOff}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const Timeline timeline, Profile(InOneLane(plan), Execution::kGraph));
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto counts, Count(plan, timeline));
  EXPECT_EQ(counts.size(), static_cast<size_t>(world_->size() * kReplays));
  for (const auto& [key, got] : counts) {
    EXPECT_EQ(got.gathers, 8);
    EXPECT_EQ(got.reductions, 4);
    EXPECT_EQ(got.overlapped_gathers, 0);
    EXPECT_EQ(got.overlapped_reductions, 0);
  }
}

// Of eager replays. A graph has no streams of its own: there cuda_graph_audit_test shows that the nodes of a lane are
// ordered, and those of different lanes are not.
TEST_F(OverlapTest, EachLaneIsAStream) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan({.residency = Residency::kOff}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const Timeline timeline, Profile(plan, Execution::kEager));
  std::map<int, std::map<Lane, std::set<int64_t>>> streams;  // by rank
  for (const CommandSpan& span : timeline.spans) {
    const Lane lane = plan.schedules[span.schedule].commands[span.command.value()].lane;
    for (const Activity& activity : span.activities) streams[span.rank][lane].insert(activity.stream);
  }
  for (const auto& [rank, lanes] : streams) {
    std::set<int64_t> all;
    for (const Lane lane : {Lane::kCompute, Lane::kAllGather, Lane::kReduceScatter}) {
      EXPECT_EQ(lanes.at(lane).size(), 1u) << Name(lane);
      all.insert(lanes.at(lane).begin(), lanes.at(lane).end());
    }
    EXPECT_EQ(all.size(), 3u);
  }
}

}  // namespace
}  // namespace reprise::testing
