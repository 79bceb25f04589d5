#include "reprise/core/overlap.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "core/planner/memory/intervals.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/core/timeline_plan.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using internal::Intervals;
using ::reprise::testing::Span;
using ::reprise::testing::StatusIs;
using ::reprise::testing::TimelinePlan;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(IntervalsTest, UnionJoinsWhatTouchesAndDropsWhatIsEmpty) {
  EXPECT_EQ(internal::Union({{5, 6}, {1, 2}, {2, 3}, {4, 4}, {5.5, 7}, {5, 5.1}}), (Intervals{{1, 3}, {5, 7}}));
}

TEST(IntervalsTest, SubtractLeavesWhatIsInTheFirstAlone) {
  const Intervals a = {{0, 10}, {20, 30}};
  EXPECT_EQ(internal::Subtract(a, {}), a);
  EXPECT_EQ(internal::Subtract(a, {{-5, 1}, {2, 3}, {9, 22}, {25, 26}, {30, 40}}),
            (Intervals{{1, 2}, {3, 9}, {22, 25}, {26, 30}}));
  EXPECT_EQ(internal::Subtract(a, {{0, 30}}), Intervals());
}

TEST(IntervalsTest, LengthWithinCountsParts) {
  const Intervals a = {{0, 10}, {20, 30}, {40, 50}};
  EXPECT_EQ(internal::Length(a), 30);
  EXPECT_EQ(internal::LengthWithin(a, {5, 45}), 5 + 10 + 5);
  EXPECT_EQ(internal::LengthWithin(a, {10, 20}), 0);
  EXPECT_EQ(internal::LengthWithin(a, {21, 22}), 1);
}

// Compute runs in [10, 16) and [20, 50).
Timeline ExampleTimeline() {
  return {{Span(1, 0, 10), Span(2, 10, 20), Span(3, 10, 16), Span(4, 20, 30), Span(5, 30, 40), Span(6, 40, 55),
           Span(7, 40, 50), Span(8, 55, 60)}};
}

TEST(OverlapTest, CountsTheMicrosecondsOfEachCause) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const OverlapReport report, AnalyzeOverlap(TimelinePlan(), ExampleTimeline()));
  ASSERT_EQ(report.ranks.size(), 1u);
  const RankOverlap& rank = report.ranks[0];
  EXPECT_EQ(rank.duration_us, 60);
  EXPECT_EQ(rank.compute_us, 6 + 30);
  EXPECT_EQ(rank.communication_us, 20 + 20);
  EXPECT_THAT(rank.exposed_us, ElementsAre(10, 5, 4 + 5));
  EXPECT_EQ(rank.exposed_total_us(), 24);
  std::vector<double> covered;
  std::vector<ExposedCause> causes;
  for (const CommunicationSpan& span : report.communication) {
    covered.push_back(span.covered_us);
    causes.push_back(span.cause);
    EXPECT_FALSE(span.overlapped());
  }
  EXPECT_THAT(covered, ElementsAre(0, 6, 10, 0));
  EXPECT_THAT(causes, ElementsAre(ExposedCause::kFirstGather, ExposedCause::kOther, ExposedCause::kOther,
                                  ExposedCause::kLastReduction));
  EXPECT_EQ(report.communication[1].covered_fraction(), 6.0 / 10);
}

TEST(OverlapTest, AMomentCountsOnceForTheCauseListedFirst) {
  // The reduction of u1 (other) goes on while that of u0 (the last) runs.
  REPRISE_ASSERT_OK_AND_ASSIGN(const OverlapReport report,
                               AnalyzeOverlap(TimelinePlan(), {{Span(6, 50, 70), Span(7, 40, 50), Span(8, 60, 80)}}));
  EXPECT_THAT(report.ranks[0].exposed_us, ElementsAre(0, 20, 10));
  EXPECT_EQ(report.ranks[0].communication_us, 30);
}

TEST(OverlapTest, ACollectiveCountsAsOverlappedFromNineTenthsOn) {
  const auto overlapped = [](double compute_end) {
    const OverlapReport report = *AnalyzeOverlap(TimelinePlan(), {{Span(2, 0, 10), Span(3, 0, compute_end)}});
    return report.communication[0].overlapped();
  };
  EXPECT_FALSE(overlapped(8.99));
  EXPECT_TRUE(overlapped(9));
  EXPECT_TRUE(overlapped(20));
}

TEST(OverlapTest, TheActivitiesOfComputeCountWhereItHasSome) {
  Timeline timeline = {{Span(2, 0, 10), Span(3, 0, 10)}};
  timeline.spans[1].activities = {
      {.start_us = 0, .end_us = 2}, {.start_us = 1, .end_us = 3}, {.start_us = 9, .end_us = 10}};
  REPRISE_ASSERT_OK_AND_ASSIGN(const OverlapReport report, AnalyzeOverlap(TimelinePlan(), timeline));
  EXPECT_EQ(report.communication[0].covered_us, 3 + 1);
  EXPECT_EQ(report.ranks[0].compute_us, 4);
}

TEST(OverlapTest, ComputeOfOtherRanksAndLanesCoversNothing) {
  Timeline timeline = {{Span(2, 0, 10), Span(6, 0, 10), Span(3, 0, 10)}};
  timeline.spans[2].rank = 1;
  REPRISE_ASSERT_OK_AND_ASSIGN(const OverlapReport report, AnalyzeOverlap(TimelinePlan(), timeline));
  ASSERT_EQ(report.ranks.size(), 2u);
  EXPECT_EQ(report.ranks[0].exposed_total_us(), 10);
  EXPECT_EQ(report.ranks[1].compute_us, 10);
  EXPECT_EQ(report.ranks[1].communication_us, 0);
}

TEST(OverlapTest, FirstGathersAreThoseThatTheFirstComputeWaitsForThroughOthersToo) {
  const auto causes = [](const Plan& plan) {
    std::vector<ExposedCause> all;
    const OverlapReport report = *AnalyzeOverlap(plan, ExampleTimeline());
    for (const CommunicationSpan& span : report.communication) all.push_back(span.cause);
    return all;
  };
  // The gather of u1 follows that of u0 on its lane.
  EXPECT_THAT(causes(TimelinePlan("u0", /*first_waits_for=*/2)),
              ElementsAre(ExposedCause::kFirstGather, ExposedCause::kFirstGather, ExposedCause::kOther,
                          ExposedCause::kLastReduction));
  // The last compute is then #5: #6 waits for it, and #8 for #7, which follows it.
  Plan plan = TimelinePlan();
  plan.schedules[0].commands[7].command = PackGradients{UnitId(0)};
  EXPECT_THAT(causes(plan), ElementsAre(ExposedCause::kFirstGather, ExposedCause::kOther, ExposedCause::kLastReduction,
                                        ExposedCause::kLastReduction));
}

TEST(OverlapTest, ReductionsOfAGraphWithoutComputeAreTheLast) {
  REPRISE_ASSERT_OK_AND_ASSIGN(
      const OverlapReport report,
      AnalyzeOverlap(TimelinePlan(), {{{.schedule = 1, .command = CommandId(1), .start_us = 1, .end_us = 3}}}));
  EXPECT_THAT(report.ranks[0].exposed_us, ElementsAre(0, 2, 0));
  EXPECT_EQ(report.communication[0].cause, ExposedCause::kLastReduction);
}

TEST(OverlapTest, RefusesWhatIsNotOfThePlan) {
  EXPECT_THAT(AnalyzeOverlap(TimelinePlan(), {{Span(10, 0, 1)}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("span 0 of the timeline is of command 10 of 10")));
  CommandSpan span = Span(3, 0, 2);
  span.replay = -5;
  EXPECT_THAT(AnalyzeOverlap(TimelinePlan(), {{span}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is of replay -5")));
  span = Span(3, 0, 2);
  span.activities = {{.start_us = 1, .end_us = 600}};
  EXPECT_THAT(AnalyzeOverlap(TimelinePlan(), {{span}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("but an activity of it from 1 to 600")));
  Plan plan = TimelinePlan();
  plan.schedules[0].commands[2].waits = {testing::Data(2)};
  EXPECT_THAT(AnalyzeOverlap(plan, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("command 2 of schedule body waits for command 2, which is none before it")));
  plan.schedules[0].commands[2].waits = {{CommandId(), WaitReason::kData}};
  EXPECT_THAT(AnalyzeOverlap(plan, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("waits for command -1")));
}

// ---- forms ----

TEST(OverlapTextTest, ShowsRanksAndTheCollectivesOfTheFirst) {
  const Plan plan = TimelinePlan();
  Timeline timeline = ExampleTimeline();
  for (CommandSpan span : ExampleTimeline().spans) {
    span.rank = 1;
    timeline.spans.push_back(span);
  }
  EXPECT_EQ(ToText(plan, *AnalyzeOverlap(plan, timeline)),
            R"(microseconds of each rank, and their share of its duration
rank     duration           compute           exposed      first_gather    last_reduction             other
   0         60.0       36.0  60.0%       24.0  40.0%       10.0  16.7%        5.0   8.3%        9.0  15.0%
   1         60.0       36.0  60.0%       24.0  40.0%       10.0  16.7%        5.0   8.3%        9.0  15.0%

rank 0, covered by compute to 90%: 0 of 2 all_gather, 0 of 2 reduce_scatter
replay  command                                        bytes         us    GB/s  covered  cause
     0  body #1 all_gather u0                            256       10.0     0.0     0.0%  first_gather
     0  body #2 all_gather u1                            512       10.0     0.1    60.0%  other
     0  body #6 reduce_scatter u1 microbatch 0           512       15.0     0.0    66.7%  other
     0  body #8 reduce_scatter u0 microbatch 0           256        5.0     0.1     0.0%  last_reduction
)");
  EXPECT_EQ(ToText(plan, *AnalyzeOverlap(plan, {})), "the timeline is empty\n");
}

TEST(OverlapTextTest, FitsInto110ColumnsWhateverTheNamesAre) {
  std::string name;
  for (int i = 0; i < 60; ++i) name += "\xc3\xa4";  // two bytes each
  const Plan plan = TimelinePlan(name);
  Timeline timeline = ExampleTimeline();
  timeline.spans.back().end_us = 5e7;
  const std::string text = ToText(plan, *AnalyzeOverlap(plan, timeline));
  for (const absl::string_view line : absl::StrSplit(text, '\n')) EXPECT_LE(line.size(), 110u) << line;
  EXPECT_THAT(text, HasSubstr("\xc3\xa4...  "));  // cut between characters
}

TEST(OverlapJsonTest, HasTheSameFigures) {
  const Plan plan = TimelinePlan();
  REPRISE_ASSERT_OK_AND_ASSIGN(const OverlapReport report, AnalyzeOverlap(plan, ExampleTimeline()));
  const nlohmann::json json = nlohmann::json::parse(ToJson(plan, report));
  EXPECT_EQ(json["ranks"], nlohmann::json::parse(R"([{"rank": 0, "duration_us": 60.0, "compute_us": 36.0,
      "communication_us": 40.0, "exposed_us": {"first_gather": 10.0, "last_reduction": 5.0, "other": 9.0}}])"));
  ASSERT_EQ(json["communication"].size(), 4u);
  EXPECT_EQ(json["communication"][2], nlohmann::json::parse(R"({"rank": 0, "replay": 0, "schedule": "body",
      "command": 6, "what": "reduce_scatter u1 microbatch 0 slot 0 nccl sum nccl", "bytes": 512, "start_us": 40.0,
      "end_us": 55.0, "covered_us": 10.0, "covered_fraction": 0.6666666666666666, "cause": "other"})"));
}

}  // namespace
}  // namespace reprise
