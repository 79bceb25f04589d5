// What predicted timelines must be for any plan, and the overlap that the founding tests of the schedule ask for.
#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/plan/happens_before.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/core/cost_model.h"
#include "reprise/core/overlap.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "tests/testing/random_model.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using ::reprise::testing::Random;
using ::reprise::testing::RandomModel;
using ::reprise::testing::RandomPlanOptions;

// ---- the founding figures ----

struct Counts {
  int gathers = 0, overlapped_gathers = 0, reductions = 0, overlapped_reductions = 0;
  friend bool operator==(const Counts&, const Counts&) = default;
  friend void PrintTo(const Counts& counts, std::ostream* out) {
    *out << counts.gathers << " (" << counts.overlapped_gathers << "), " << counts.reductions << " ("
         << counts.overlapped_reductions << ")";
  }
};

Counts Count(const Plan& plan, const std::vector<int>& schedules, const CostModel& costs = {}) {
  const absl::StatusOr<Timeline> timeline = PredictTimeline(plan, schedules, costs);
  EXPECT_TRUE(timeline.ok()) << timeline.status();
  const absl::StatusOr<OverlapReport> report = AnalyzeOverlap(plan, *timeline);
  EXPECT_TRUE(report.ok()) << report.status();
  Counts counts;
  for (const CommunicationSpan& span : report->communication) {
    const bool gathers =
        std::holds_alternative<AllGather>(plan.schedules[span.schedule].commands[span.command.value()].command);
    ++(gathers ? counts.gathers : counts.reductions);
    (gathers ? counts.overlapped_gathers : counts.overlapped_reductions) += span.overlapped() ? 1 : 0;
  }
  return counts;
}

// Four units of 16384 x 16384 and 8192 tokens.
Plan FoundingPlan(PlanOptions options) {
  options.weight_slots = 2;
  const absl::StatusOr<Model> model = StackModel(4, {16384, 16384}, DType::kBFloat16, 8192);
  EXPECT_TRUE(model.ok()) << model.status();
  const absl::StatusOr<Plan> plan = PlanTraining(*model, 2, options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

TEST(FoundingOverlapTest, EveryCollectiveThatCanBeConcurrentWithComputeIs) {
  const Plan off = FoundingPlan({.residency = Residency::kOff});
  // All but the first gather and the last reduction of each graph. The founding system also waits for the first gather
  // of each backward: it overlaps 6 of 8, and 12 of 16.
  EXPECT_EQ(Count(off, {off.first}), (Counts{8, 7, 4, 3}));
  EXPECT_EQ(Count(off, {off.first, off.body}), (Counts{16, 14, 8, 6}));
  const Plan two = FoundingPlan({.microbatches_per_graph = 2, .residency = Residency::kOff});
  EXPECT_EQ(Count(two, {two.first}), (Counts{16, 15, 8, 7}));
  const Plan kept = FoundingPlan({.microbatches_per_graph = 2});
  EXPECT_EQ(Count(kept, {kept.first}), (Counts{10, 9, 8, 7}));
}

TEST(FoundingOverlapTest, NothingOverlapsOnOneLane) {
  Plan plan = FoundingPlan({.residency = Residency::kOff});
  for (ScheduledCommand& command : plan.schedules[plan.first].commands) command.lane = Lane::kCompute;
  EXPECT_EQ(Count(plan, {plan.first}), (Counts{8, 0, 4, 0}));
}

// Each gather then waits for the call before the one that needs it.
TEST(FoundingOverlapTest, NoGatherOverlapsWhereNoneMayRunAhead) {
  const Plan plan = FoundingPlan({.prefetch_depth = 0, .residency = Residency::kOff});
  const Counts counts = Count(plan, {plan.first});
  EXPECT_EQ(counts.gathers, 8);
  EXPECT_EQ(counts.overlapped_gathers, 0);
}

// ---- any plan ----

Plan RandomPlan(uint64_t seed) {
  Random random(seed);
  const PlanOptions options = RandomPlanOptions(random);
  const absl::StatusOr<Plan> plan =
      PlanTraining(RandomModel(random.Next(), {.max_units = 5}), 1 + static_cast<int>(random.Below(4)), options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

std::vector<int> SomeStep(const Plan& plan) {
  std::vector<int> schedules = {plan.first, plan.body, plan.body};
  if (plan.finish >= 0) schedules.push_back(plan.finish);
  schedules.push_back(plan.step);
  return schedules;
}

// Bytes and FLOPs of the random models take about as long as starting a command.
CostModel SmallCosts() {
  return {.flops = 1e9,
          .memory_bandwidth = 2e9,
          .gather_bandwidth = 1e9,
          .reduce_bandwidth = 7e8,
          .collective_us = 5,
          .command_us = 3};
}

class RandomPredictionTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    plan_ = RandomPlan(static_cast<uint64_t>(GetParam()));
    schedules_ = SomeStep(plan_);
    REPRISE_ASSERT_OK_AND_ASSIGN(timeline_, PredictTimeline(plan_, schedules_, SmallCosts()));
  }
  std::vector<CommandSpan> Replay(size_t replay) const {
    std::vector<CommandSpan> spans;
    for (const CommandSpan& span : timeline_.spans) {
      if (span.replay == static_cast<int>(replay)) spans.push_back(span);
    }
    return spans;
  }
  internal::HappensBefore OrderOf(size_t replay) const {
    internal::HappensBefore order;
    for (const ScheduledCommand& c : plan_.schedules[schedules_[replay]].commands) order.Add(c.lane, c.waits);
    return order;
  }

  Plan plan_;
  std::vector<int> schedules_;
  Timeline timeline_;
};

TEST_P(RandomPredictionTest, EveryCommandButBeginAndEndHasASpan) {
  for (size_t replay = 0; replay < schedules_.size(); ++replay) {
    std::set<int> expected, found;
    const std::vector<ScheduledCommand>& commands = plan_.schedules[schedules_[replay]].commands;
    for (int c = 1; c + 1 < static_cast<int>(commands.size()); ++c) expected.insert(c);
    for (const CommandSpan& span : Replay(replay)) found.insert(span.command.value());
    EXPECT_EQ(found, expected);
  }
}

TEST_P(RandomPredictionTest, RespectsEveryWaitAndLaneAndWaitsForNothingElse) {
  double replay_start = 0;
  for (size_t replay = 0; replay < schedules_.size(); ++replay) {
    const std::vector<CommandSpan> spans = Replay(replay);
    const internal::HappensBefore order = OrderOf(replay);
    double replay_end = replay_start;
    for (const CommandSpan& later : spans) {
      double ready = replay_start;  // when all that comes before it is done
      for (const CommandSpan& earlier : spans) {
        const bool before = earlier.command < later.command && order.Ordered(earlier.command, later.command);
        if (before) ready = std::max(ready, earlier.end_us);
      }
      EXPECT_EQ(later.start_us, ready) << "command " << later.command.value() << " of replay " << replay;
      replay_end = std::max(replay_end, later.end_us);
    }
    replay_start = replay_end;
  }
}

TEST_P(RandomPredictionTest, TakesAtLeastAsLongAsItsCriticalPathAndAsEachLane) {
  double bound = 0, end = 0;
  for (size_t replay = 0; replay < schedules_.size(); ++replay) {
    const std::vector<CommandSpan> spans = Replay(replay);
    const internal::HappensBefore order = OrderOf(replay);
    std::vector<double> paths(spans.size());  // the longest that ends with each
    std::vector<double> lanes(kNumLanes, 0);
    double longest = 0;
    for (size_t s = 0; s < spans.size(); ++s) {
      for (size_t earlier = 0; earlier < s; ++earlier) {
        if (order.Ordered(spans[earlier].command, spans[s].command)) paths[s] = std::max(paths[s], paths[earlier]);
      }
      const double duration = spans[s].end_us - spans[s].start_us;
      paths[s] += duration;
      const Lane lane = plan_.schedules[spans[s].schedule].commands[spans[s].command.value()].lane;
      longest = std::max({longest, paths[s], lanes[static_cast<int>(lane)] += duration});
      end = std::max(end, spans[s].end_us);
    }
    bound += longest;
  }
  // A rounding for each span and each of its ends.
  const double tolerance = 3 * static_cast<double>(timeline_.spans.size()) * 0x1p-53 * end;
  EXPECT_GE(end, bound - tolerance);
}

TEST_P(RandomPredictionTest, ExposedAndCoveredCommunicationAreAllOfIt) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const OverlapReport report, AnalyzeOverlap(plan_, timeline_));
  ASSERT_EQ(report.ranks.size(), 1u);
  // Moment by moment: between two neighbours of these nothing starts or ends.
  std::set<double> moments;
  for (const CommandSpan& span : timeline_.spans) moments.insert({span.start_us, span.end_us});
  double compute = 0, communication = 0, covered = 0;
  for (auto next = std::next(moments.begin()); next != moments.end(); ++next) {
    const double start = *std::prev(next), length = *next - start;
    bool computes = false, communicates = false;
    for (const CommandSpan& span : timeline_.spans) {
      if (span.start_us > start || span.end_us <= start) continue;
      const Command& command = plan_.schedules[span.schedule].commands[span.command.value()].command;
      computes |= std::holds_alternative<Forward>(command) || std::holds_alternative<Backward>(command);
      communicates |= IsCollective(command);
    }
    compute += computes ? length : 0;
    communication += communicates ? length : 0;
    covered += computes && communicates ? length : 0;
  }
  const RankOverlap& rank = report.ranks[0];
  const double tolerance = static_cast<double>(moments.size()) * 0x1p-51 * *moments.rbegin();
  EXPECT_NEAR(rank.duration_us, *moments.rbegin(), tolerance);
  EXPECT_NEAR(rank.compute_us, compute, tolerance);
  EXPECT_NEAR(rank.communication_us, communication, tolerance);
  EXPECT_NEAR(rank.exposed_total_us() + covered, rank.communication_us, tolerance);
  for (const CommunicationSpan& span : report.communication) {
    EXPECT_GE(span.covered_us, 0);
    EXPECT_LE(span.covered_us, span.duration_us() + tolerance);
  }
}

TEST_P(RandomPredictionTest, SurvivesTheWayThroughJsonAndMakesATrace) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const Timeline read, TimelineFromJson(ToJson(timeline_)));
  EXPECT_EQ(read, timeline_);
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::string trace, ToChromeTrace(plan_, timeline_, "predicted"));
  size_t slices = 0;
  const nlohmann::json json = nlohmann::json::parse(trace);
  for (const nlohmann::json& event : json["traceEvents"]) slices += event["ph"] == "X";
  EXPECT_EQ(slices, timeline_.spans.size());
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomPredictionTest, ::testing::Range(0, 40));

}  // namespace
}  // namespace reprise
