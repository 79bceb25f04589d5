// Timed replays: every command once per replay, in the order of the schedule, and the same results.
#include <map>
#include <set>
#include <tuple>

#include "core/plan/happens_before.h"
#include "tests/conformance/conformance.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kMicrobatches = 3;

bool Works(const Command& command) {
  return std::visit(Overloaded{[](const AllGather&) { return true; }, [](const Forward&) { return true; },
                               [](const Backward&) { return true; }, [](const ReduceScatter&) { return true; },
                               [](const Accumulate&) { return true; }, [](const RecordLoss&) { return true; },
                               [](const UpdateParameters&) { return true; }, [](const auto&) { return false; }},
                    command);
}

// The schedules that a step replays.
std::vector<int> Step(const Plan& plan) {
  std::vector<int> schedules = {plan.first};
  for (int m = 1; m < kMicrobatches; ++m) schedules.push_back(plan.body);
  for (const int last : {plan.finish, plan.step}) {
    if (last >= 0) schedules.push_back(last);
  }
  return schedules;
}

void ExpectComplete(const Plan& plan, int ranks, const Timeline& timeline) {
  std::set<std::tuple<int, int, CommandId>> spans;
  const std::vector<int> schedules = Step(plan);
  for (const CommandSpan& span : timeline.spans) {
    ASSERT_LT(span.replay, static_cast<int>(schedules.size()));
    EXPECT_EQ(span.schedule, schedules[span.replay]);
    EXPECT_TRUE(spans.emplace(span.rank, span.replay, span.command).second) << "twice";
    EXPECT_GE(span.start_us, 0);
    EXPECT_LE(span.start_us, span.end_us);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    for (size_t replay = 0; replay < schedules.size(); ++replay) {
      const std::vector<ScheduledCommand>& commands = plan.schedules[schedules[replay]].commands;
      for (size_t c = 0; c < commands.size(); ++c) {
        if (!Works(commands[c].command)) continue;
        // A rank alone exchanges nothing.
        if (std::holds_alternative<ReduceScatter>(commands[c].command) && plan.world_size() == 1) continue;
        EXPECT_TRUE(spans.contains({rank, static_cast<int>(replay), CommandId(static_cast<int64_t>(c))}))
            << "rank " << rank << ", replay " << replay << ": " << Describe(plan, commands[c].command);
      }
    }
  }
}

void ExpectOrdered(const Plan& plan, const Timeline& timeline) {
  std::map<std::pair<int, int>, std::vector<const CommandSpan*>> replays;
  for (const CommandSpan& span : timeline.spans) replays[{span.rank, span.replay}].push_back(&span);
  for (const auto& [key, spans] : replays) {
    const Schedule& schedule = plan.schedules[spans[0]->schedule];
    internal::HappensBefore order;
    for (const ScheduledCommand& command : schedule.commands) order.Add(command.lane, command.waits);
    for (const CommandSpan* earlier : spans) {
      for (const CommandSpan* later : spans) {
        if (earlier == later || !order.Ordered(earlier->command, later->command)) continue;
        // Devices stamp the end of a kernel up to a microsecond after the start of one that waited for it.
        EXPECT_LE(earlier->activities.empty() ? earlier->end_us : earlier->start_us, later->start_us)
            << "rank " << key.first << ", replay " << key.second << ": "
            << Describe(plan, schedule.commands[earlier->command.value()].command) << " before "
            << Describe(plan, schedule.commands[later->command.value()].command);
      }
    }
  }
}

TEST_P(ConformanceTest, ProfilesTimeEveryCommandAndChangeNothing) {
  const Classifier classifier = MakeClassifier(3, DType::kFloat32), other = MakeClassifier(2, DType::kFloat32);
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(classifier.model, ranks(), {.tail = Tail::kCarried}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan other_plan, PlanTraining(other.model, ranks(), {}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto runner, NewRunner(plan, classifier.compute, ClassifierParameter));
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto untimed, NewRunner(plan, classifier.compute, ClassifierParameter));
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto unrelated, NewRunner(other_plan, other.compute, ClassifierParameter));

  EXPECT_THAT(world_->StopProfile(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no profile is open")));
  for (int profile = 0; profile < 2; ++profile) {
    ASSERT_THAT(world_->StartProfile(plan), IsOk());
    EXPECT_THAT(world_->StartProfile(plan), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is open")));
    ASSERT_THAT(unrelated->RunStep(1, ClassifierInput), IsOk());
    ASSERT_THAT(runner->RunStep(kMicrobatches, ClassifierInput), IsOk());
    REPRISE_ASSERT_OK_AND_ASSIGN(const Timeline timeline, world_->StopProfile());
    ExpectComplete(plan, ranks(), timeline);
    ExpectOrdered(plan, timeline);
    ASSERT_THAT(untimed->RunStep(kMicrobatches, ClassifierInput), IsOk());
  }
  ASSERT_THAT(runner->RunStep(kMicrobatches, ClassifierInput), IsOk());
  ASSERT_THAT(untimed->RunStep(kMicrobatches, ClassifierInput), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::string got, runner->ReadAll());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::string want, untimed->ReadAll());
  EXPECT_EQ(got, want);
}

}  // namespace
}  // namespace reprise::testing
