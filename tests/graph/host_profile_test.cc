// Measured timelines of host ranks, in all orders of replay, and how those of several processes become one.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/plan/happens_before.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "reprise/graph/host_world.h"
#include "tests/conformance/hash_compute.h"
#include "tests/conformance/plan_runner.h"
#include "tests/graph/breakable_world.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using ::reprise::testing::BreakableWorld;
using ::reprise::testing::HashCompute;
using ::reprise::testing::HashInput;
using ::reprise::testing::HashParameter;
using ::reprise::testing::IsOk;
using ::reprise::testing::PlanRunner;
using ::reprise::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kRanks = 2;

// With all four schedules.
Plan SmallPlan() {
  return *PlanTraining(*StackModel(3, {6, 6}, DType::kBFloat16, 3), kRanks, {.tail = Tail::kCarried});
}

absl::StatusOr<std::unique_ptr<PlanRunner>> NewRunner(std::shared_ptr<World> world, const Plan& plan,
                                                      Execution execution) {
  REPRISE_ASSIGN_OR_RETURN(ComputeTable compute, HashCompute(plan.model));
  return PlanRunner::Create(std::move(world), plan, std::move(compute), HashParameter, {.execution = execution});
}

class HostProfileTest : public ::testing::TestWithParam<std::tuple<ReplayOrder, Execution>> {
 protected:
  void SetUp() override {
    const auto [order, execution] = GetParam();
    REPRISE_ASSERT_OK_AND_ASSIGN(world_, CreateHostWorld({.size = kRanks, .order = order, .seed = 5}));
    REPRISE_ASSERT_OK_AND_ASSIGN(runner_, NewRunner(world_, plan_, execution));
    schedules_ = {plan_.first, plan_.body, plan_.finish, plan_.step};
  }
  // The timeline of one step of two microbatches.
  Timeline Profile() {
    EXPECT_THAT(world_->StartProfile(plan_), IsOk());
    EXPECT_THAT(runner_->RunStep(2, HashInput), IsOk());
    const absl::StatusOr<Timeline> timeline = world_->StopProfile();
    EXPECT_THAT(timeline, IsOk());
    return timeline.value_or(Timeline());
  }

  const Plan plan_ = SmallPlan();
  std::shared_ptr<World> world_;
  std::unique_ptr<PlanRunner> runner_;
  std::vector<int> schedules_;  // by replay of a step
};

TEST_P(HostProfileTest, EveryCommandThatWorksHasASpanOnEveryRank) {
  const Timeline timeline = Profile();
  std::set<std::tuple<int, int, int, int>> found;
  for (const CommandSpan& span : timeline.spans) {
    found.emplace(span.rank, span.replay, span.schedule, span.command.value());
    EXPECT_LE(span.start_us, span.end_us);
    EXPECT_TRUE(span.activities.empty());
  }
  std::set<std::tuple<int, int, int, int>> expected;
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int replay = 0; replay < static_cast<int>(schedules_.size()); ++replay) {
      const int schedule = schedules_[replay];
      // The first command is Begin and the last one is End.
      for (int c = 1; c + 1 < static_cast<int>(plan_.schedules[schedule].commands.size()); ++c) {
        expected.emplace(rank, replay, schedule, c);
      }
    }
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(timeline.spans.size(), expected.size());
  EXPECT_TRUE(std::is_sorted(timeline.spans.begin(), timeline.spans.end(), [](const auto& a, const auto& b) {
    return std::tie(a.rank, a.replay, a.command) < std::tie(b.rank, b.replay, b.command);
  }));
}

TEST_P(HostProfileTest, SpansFollowWaitsAndLanesAndReplaysFollowEachOther) {
  const Timeline timeline = Profile();
  std::map<int, internal::HappensBefore> orders;
  for (const int schedule : schedules_) {
    internal::HappensBefore& order = orders[schedule] = {};
    for (const ScheduledCommand& c : plan_.schedules[schedule].commands) order.Add(c.lane, c.waits);
  }
  double start = timeline.spans.front().start_us;
  for (const CommandSpan& a : timeline.spans) {
    start = std::min(start, a.start_us);
    for (const CommandSpan& b : timeline.spans) {
      const bool ordered = a.replay < b.replay || (a.replay == b.replay && a.rank == b.rank && a.command < b.command &&
                                                   orders[a.schedule].Ordered(a.command, b.command));
      if (ordered) {
        EXPECT_LE(a.end_us, b.start_us) << a.command.value() << " and " << b.command.value();
      }
    }
  }
  EXPECT_EQ(start, 0);
}

TEST_P(HostProfileTest, ACollectiveRunsOnAllRanksAtSomeMoment) {
  std::map<std::pair<int, CommandId>, std::pair<double, double>> common;  // by replay and command
  for (const CommandSpan& span : Profile().spans) {
    if (!IsCollective(plan_.schedules[span.schedule].commands[span.command.value()].command)) continue;
    const auto [entry, added] = common.try_emplace({span.replay, span.command}, span.start_us, span.end_us);
    entry->second.first = std::max(entry->second.first, span.start_us);
    entry->second.second = std::min(entry->second.second, span.end_us);
  }
  EXPECT_FALSE(common.empty());
  for (const auto& [key, interval] : common) EXPECT_LE(interval.first, interval.second);
}

TEST_P(HostProfileTest, TimesOnlyReplaysOfItsPlanBetweenStartAndStop) {
  const Plan other = *PlanTraining(*StackModel(1, {4, 4}, DType::kBFloat16, 3), kRanks, {});
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PlanRunner> other_runner,
                               NewRunner(world_, other, std::get<Execution>(GetParam())));
  ASSERT_THAT(runner_->RunStep(2, HashInput), IsOk());
  const Timeline first = Profile();
  ASSERT_THAT(runner_->RunStep(2, HashInput), IsOk());
  ASSERT_THAT(world_->StartProfile(plan_), IsOk());
  ASSERT_THAT(other_runner->RunStep(1, HashInput), IsOk());
  ASSERT_THAT(runner_->RunStep(2, HashInput), IsOk());
  ASSERT_THAT(runner_->RunStep(2, HashInput), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const Timeline two_steps, world_->StopProfile());
  EXPECT_EQ(two_steps.spans.size(), 2 * first.spans.size());
  int last = 0;
  for (const CommandSpan& span : two_steps.spans) last = std::max(last, span.replay);
  EXPECT_EQ(last, 7);
  ASSERT_THAT(world_->StartProfile(plan_), IsOk());
  EXPECT_TRUE(world_->StopProfile()->spans.empty());
}

TEST_P(HostProfileTest, TimingLeavesTheSameBytes) {
  const auto [order, execution] = GetParam();
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, CreateHostWorld({.size = kRanks, .order = order}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PlanRunner> untimed, NewRunner(world, plan_, execution));
  ASSERT_THAT(untimed->RunStep(2, HashInput), IsOk());
  Profile();
  EXPECT_TRUE(*runner_->ReadAll() == *untimed->ReadAll());
}

INSTANTIATE_TEST_SUITE_P(Orders, HostProfileTest,
                         ::testing::Combine(::testing::Values(ReplayOrder::kIssue, ReplayOrder::kAdversarial,
                                                              ReplayOrder::kThreads),
                                            ::testing::Values(Execution::kGraph, Execution::kEager)));

TEST(HostProfileOrderTest, LanesOverlapWhereTheyMayAndNotInIssueOrder) {
  const Plan plan = SmallPlan();
  const auto overlaps = [&](ReplayOrder order) {
    const std::shared_ptr<World> world = *CreateHostWorld({.size = kRanks, .order = order, .seed = 3});
    const std::unique_ptr<PlanRunner> runner = *NewRunner(world, plan, Execution::kGraph);
    EXPECT_THAT(world->StartProfile(plan), IsOk());
    for (int step = 0; step < 4; ++step) EXPECT_THAT(runner->RunStep(2, HashInput), IsOk());
    const Timeline timeline = *world->StopProfile();
    int pairs = 0;
    for (const CommandSpan& a : timeline.spans) {
      for (const CommandSpan& b : timeline.spans) {
        pairs += a.rank == b.rank && a.command < b.command && a.start_us < b.end_us && b.start_us < a.end_us ? 1 : 0;
      }
    }
    return pairs;
  };
  EXPECT_EQ(overlaps(ReplayOrder::kIssue), 0);
  EXPECT_GT(overlaps(ReplayOrder::kAdversarial), 0);
}

TEST(ProfileTest, StartAndStopAlternate) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, CreateHostWorld({.size = kRanks}));
  const Plan plan = SmallPlan();
  EXPECT_THAT(world->StopProfile(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                             HasSubstr("no profile is open; call StartProfile first")));
  ASSERT_THAT(world->StartProfile(plan), IsOk());
  EXPECT_THAT(world->StartProfile(plan),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("a profile is open; call StopProfile first")));
  EXPECT_THAT(world->StopProfile(), IsOk());
  EXPECT_THAT(world->StopProfile(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no profile is open")));
  Plan other = plan;
  other.layout.world_size = kRanks + 1;
  EXPECT_THAT(world->StartProfile(other),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ranks cannot replay on")));
}

TEST(ProfileTest, AWorldThatCannotSaysSo) {
  BreakableWorld world(kRanks);
  EXPECT_THAT(world.StartProfile(SmallPlan()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("cannot time its replays")));
  EXPECT_THAT(world.StopProfile(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no profile is open")));
}

TEST(ProfileTest, AReplayThatFailsHasNoSpans) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, CreateHostWorld({.size = kRanks}));
  const Plan plan = SmallPlan();
  ComputeTable compute = *HashCompute(plan.model);
  compute[CallId(1)].forward = [](ComputeContext&) { return absl::AbortedError("once"); };
  REPRISE_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<PlanRunner> runner,
      PlanRunner::Create(world, plan, compute, HashParameter, {.execution = Execution::kEager}));
  ASSERT_THAT(world->StartProfile(plan), IsOk());
  EXPECT_THAT(runner->RunStep(2, HashInput), StatusIs(absl::StatusCode::kAborted, HasSubstr("once")));
  REPRISE_ASSERT_OK_AND_ASSIGN(const Timeline timeline, world->StopProfile());
  EXPECT_TRUE(timeline.spans.empty());
}

// ---- several processes ----

// Rank 1 of two. The other one sends what it is told to; its votes, and the fingerprint of its plan, are as this one's.
class SecondProcess : public BreakableWorld {
 public:
  SecondProcess(Timeline mine, std::string others)
      : BreakableWorld(1), mine_(std::move(mine)), others_(std::move(others)) {}
  absl::StatusOr<std::vector<std::string>> ExchangeBytes(absl::string_view,
                                                         absl::Span<const std::string> mine) override {
    return std::vector<std::string>{exchanges_++ < 3 ? mine.front() : others_, mine.front()};
  }

 private:
  absl::Status BeginProfile(const Fingerprint&) override { return absl::OkStatus(); }
  // A microsecond after the other's, and more nanoseconds than a double counts.
  absl::StatusOr<LocalProfile> EndProfile() override {
    return LocalProfile{.timeline = mine_, .origin_ns = 1'700'000'000'000'001'234};
  }

  const Timeline mine_;
  const std::string others_;
  int exchanges_ = 0;
};

TEST(ProfileTest, TimelinesOfAllProcessesStartAtTheFirstSpanAndAreInOrder) {
  CommandSpan mine = {.rank = 1, .command = CommandId(2), .start_us = 1029, .end_us = 1049};
  mine.activities = {{.start_us = 1034, .end_us = 1039}};
  const CommandSpan late = {.replay = 1, .command = CommandId(1), .start_us = 1060, .end_us = 1070};
  const CommandSpan early = {.command = CommandId(3), .start_us = 1020, .end_us = 1030};
  SecondProcess world({{mine}}, "1700000000000000234\n" + ToJson(Timeline{{late, early}}));
  ASSERT_THAT(world.StartProfile({}), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const Timeline timeline, world.StopProfile());
  ASSERT_EQ(timeline.spans.size(), 3u);
  const auto moved = [](CommandSpan span) {
    span.start_us -= 1020 - span.rank;
    span.end_us -= 1020 - span.rank;
    for (Activity& activity : span.activities) activity = {.start_us = 15, .end_us = 20};
    return span;
  };
  EXPECT_EQ(timeline, (Timeline{{moved(early), moved(late), moved(mine)}}));
}

TEST(ProfileTest, ATimelineThatCannotBeReadIsAnError) {
  SecondProcess world({}, "1\n{\"spans\": 7}");
  ASSERT_THAT(world.StartProfile({}), IsOk());
  EXPECT_THAT(world.StopProfile(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("spans: is of type number")));
  SecondProcess other({}, "a vote");
  ASSERT_THAT(other.StartProfile({}), IsOk());
  EXPECT_THAT(other.StopProfile(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("something else than its profile")));
}

}  // namespace
}  // namespace reprise
