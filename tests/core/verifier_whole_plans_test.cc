// What every reduction or accumulate of a plan gets wrong in the same way, so that none differs from the others.
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/violations.h"

namespace reprise {
namespace {

using reprise::testing::IsOk;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

Plan CarriedExchange() {
  return PlanTraining(
             StackModel(3, {512, 512}, DType::kBFloat16, 4).value(), 2,
             {.microbatches_per_graph = 2, .tail = Tail::kCarried, .transports = EveryUnit(Transport::kCopyEngine)})
      .value();
}

std::string MessageAfter(Plan plan, const char* schedule, const std::function<void(ScheduledCommand&)>& change) {
  for (Schedule& s : plan.schedules) {
    if (s.name != schedule && *schedule != '\0') continue;
    for (ScheduledCommand& command : s.commands) {
      if (std::holds_alternative<Accumulate>(command.command)) change(command);
    }
  }
  const std::vector<Violation> found = FindViolations(plan);
  return found.empty() ? "" : absl::StrCat(Name(found[0].check), " ", found[0].schedule, ": ", found[0].message);
}

TEST(VerifierAccumulatesTest, NamesWhatEveryAccumulateOfAPlanGetsWrong) {
  const Plan plan = CarriedExchange();
  ASSERT_THAT(Verify(plan), IsOk());
  const auto at_zero = [](ScheduledCommand& c) { std::get<Accumulate>(c.command).position = 0; };
  EXPECT_THAT(MessageAfter(plan, "finish", at_zero),
              AllOf(HasSubstr("meaning finish: #"), HasSubstr("accumulate u0 microbatch 0"),
                    HasSubstr("of microbatch 0 with 1 of its terms, but they hold"), HasSubstr("of microbatch 1")));
  EXPECT_THAT(MessageAfter(plan, "body", at_zero),
              AllOf(HasSubstr("meaning body: #"), HasSubstr("accumulate u0 microbatch 0"),
                    HasSubstr("of microbatch 0 with 1 of its terms, but they hold"), HasSubstr("of microbatch -1")));
  const auto without = [](Role role) {
    return
        [role](ScheduledCommand& c) { std::erase_if(c.uses, [&](const BufferUse& use) { return use.role == role; }); };
  };
  EXPECT_THAT(MessageAfter(plan, "", without(Role::kNormPartials)),
              HasSubstr("has no use as norm_partials 0, which it needs"));
  EXPECT_THAT(MessageAfter(plan, "", without(Role::kReduceBuffer)),
              HasSubstr("has no use as reduce_buffer 0, which it needs"));
  const auto norm = [](std::function<void(BufferUse&)> change) {
    return [change](ScheduledCommand& c) {
      for (BufferUse& use : c.uses) {
        if (use.role == Role::kNormPartials) change(use);
      }
    };
  };
  EXPECT_THAT(MessageAfter(plan, "", norm([](BufferUse& use) { use.offset = 0; })),
              AllOf(HasSubstr("updates bytes [0, 64) of norm_partials as norm_partials 0"),
                    HasSubstr("whose place there is byte 128")));
  EXPECT_THAT(MessageAfter(plan, "", norm([](BufferUse& use) { use.num_bytes = 8; })),
              AllOf(HasSubstr("updates bytes [128, 136) of norm_partials as norm_partials 0"),
                    HasSubstr("but must update 64 bytes")));
  EXPECT_THAT(MessageAfter(plan, "first", [](auto& c) { std::get<Accumulate>(c.command).sum = Sum::kNccl; }),
              AllOf(HasSubstr("form first: #"), HasSubstr("has sum nccl, but its unit has rank_order")));
  EXPECT_THAT(
      MessageAfter(plan, "", [](auto& c) { std::get<Accumulate>(c.command).mode = AccumulateMode::kAlwaysAssign; }),
      HasSubstr("does not assign by microbatch, but the plan reduces every microbatch"));
}

TEST(VerifierAccumulatesTest, TheNormIsOfAllPartialNorms) {
  struct Change {
    std::function<void(BufferUse&)> change;
    const char* words;
  };
  for (const Change& change : std::vector<Change>{
           {[](BufferUse& use) { use.num_bytes -= 8; }, "reads bytes [0, 184) of norm_partials"},
           {[](BufferUse& use) { use.offset += 8, use.num_bytes -= 8; }, "reads bytes [8, 192) of norm_partials"},
           {[](BufferUse& use) { use.access = Access::kAssign; }, "assigns bytes [0, 192) of norm_partials"},
           {[](BufferUse& use) { use.role = Role::kStepState; }, "as step_state, which it does not need"}}) {
    Plan plan = CarriedExchange();
    for (ScheduledCommand& command : plan.schedules[plan.step].commands) {
      if (!std::holds_alternative<SumNorm>(command.command)) continue;
      for (BufferUse& use : command.uses) {
        if (use.role == Role::kNormPartials) change.change(use);
      }
    }
    EXPECT_THAT(FindViolations(plan),
                Contains(AllOf(Field(&Violation::check, Check::kMeaning), Field(&Violation::schedule, "step"),
                               Field(&Violation::message, AllOf(HasSubstr("sum_norm"), HasSubstr(change.words))))));
  }
}

// The next gradient of a slot follows the sum, which reads a rank's own part, and not the exchange alone.
TEST(VerifierAccumulatesTest, AGradientSlotOfAnExchangeIsTakenUntilTheSum) {
  Plan plan = PlanTraining(StackModel(3, {512, 512}, DType::kBFloat16, 4).value(), 2,
                           {.gradient_slots = 1, .transports = EveryUnit(Transport::kCopyEngine)})
                  .value();
  Schedule& schedule = plan.schedules[plan.first];
  int changed = 0;
  for (ScheduledCommand& command : schedule.commands) {
    for (Wait& wait : command.waits) {
      if (!std::holds_alternative<Accumulate>(schedule.commands[wait.command.value()].command)) continue;
      if (wait.reason != WaitReason::kOrder) continue;
      ++changed;
      const CommandId before(wait.command.value() - 1);
      ASSERT_TRUE(std::holds_alternative<ReduceScatter>(schedule.commands[before.value()].command));
      wait.command = before;
    }
  }
  EXPECT_EQ(changed, 2);
  EXPECT_THAT(FindViolations(plan),
              Contains(AllOf(Field(&Violation::check, Check::kOrder), Field(&Violation::schedule, "first"),
                             Field(&Violation::message,
                                   AllOf(HasSubstr("takes gradient slot 0 from u2, but no wait orders it after #"),
                                         HasSubstr("accumulate u2"))))));
}

TEST(VerifierAccumulatesTest, AnotherUnitsPackDoesNotTakeASum) {
  Plan plan =
      PlanTraining(StackModel(2, {8, 8}, DType::kBFloat16, 4).value(), 2, {.reduce = Reduce::kOncePerStep}).value();
  ASSERT_THAT(Verify(plan), IsOk());
  for (ScheduledCommand& command : plan.schedules[plan.finish].commands) {
    if (auto* const pack = std::get_if<PackGradients>(&command.command)) pack->unit = UnitId(1);
  }
  EXPECT_THAT(
      FindViolations(plan),
      ElementsAre(AllOf(Field(&Violation::check, Check::kMeaning), Field(&Violation::schedule, "finish"),
                        Field(&Violation::message,
                              AllOf(HasSubstr("pack_gradients u1"),
                                    HasSubstr("uses bytes [0, 256) of unsharded_gradient.u0 as parameter_gradient "
                                              "0, which it does not need"))))));
}

TEST(VerifierAccumulatesTest, APlanWithoutPartialNormsAccumulatesNothing) {
  Plan plan = CarriedExchange();
  plan.norm_partials = BufferId();
  const std::vector<Violation> found = FindViolations(plan);
  ASSERT_FALSE(found.empty());
  EXPECT_THAT(found[0].message, HasSubstr("buffer -1, which is to hold the partial norms, does not exist"));
}

}  // namespace
}  // namespace reprise
