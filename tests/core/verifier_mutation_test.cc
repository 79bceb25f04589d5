// Whatever numbers a plan holds, the verifier and the forms of a plan read no memory that is not theirs and compute
// nothing that overflows. The sanitizers of the test's other builds watch.
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "reprise/core/verifier.h"
#include "tests/core/verifier_plans.h"
#include "tests/testing/field_mutation.h"
#include "tests/testing/random_model.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using reprise::testing::FieldMutation;
using reprise::testing::IsOk;
using reprise::testing::Random;

// The fields of a plan that a mutation may change.
int64_t NumFields(Plan plan) {
  Random random(0);
  FieldMutation none(-1, random);
  none.Visit(plan);
  return none.count();
}

std::vector<Plan> ValidPlans() {
  std::vector<Plan> plans = {testing::TwoUnitPlan().plan, testing::CarriedPlan().plan,
                             testing::UnshardedGradientPlan().plan, testing::InPlacePlan().plan};
  const Model stack = StackModel(2, {8, 8}, DType::kBFloat16, 4).value();
  plans.push_back(PlanTraining(stack, 2, {.reduce_dtype = DType::kFloat32}).value());
  plans.push_back(PlanTraining(stack, 2, {.microbatches_per_graph = 2, .tail = Tail::kCarried}).value());
  plans.push_back(
      PlanTraining(stack, 2, {.reduce = Reduce::kOncePerStep, .transports = EveryUnit(Transport::kSymmetric)}).value());
  plans.push_back(PlanTraining(stack, 2,
                               {.reduce = Reduce::kOncePerStep,
                                .transports = EveryUnit(Transport::kCopyEngine),
                                .reduce_dtype = DType::kFloat32})
                      .value());
  plans.push_back(PlanForward(stack, 2, {}).value());
  plans.push_back(PlanTraining(testing::RandomModel(1, {.max_units = 3}), 2, {.tail = Tail::kCarried}).value());
  return plans;
}

void ReadAll(const Plan& plan) {
  (void)FindViolations(plan);
  (void)Summarize(plan, 4);
  EXPECT_NE(ToText(plan), "");
  EXPECT_NE(ToDot(plan), "");
  (void)ToJson(plan, 4);
  (void)ComputeFingerprint(plan);
}

TEST(VerifierMutationTest, ThePlansAreValid) {
  for (const Plan& plan : ValidPlans()) EXPECT_THAT(FindViolations(plan, Check::kSuccession), ::testing::IsEmpty());
}

TEST(VerifierMutationTest, EveryReaderIsTotal) {
  constexpr int kCases = 2000;
  const std::vector<Plan> plans = ValidPlans();
  for (int seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Plan plan = plans[random.Below(static_cast<int64_t>(plans.size()))];
    // One change shows what a single check lets through, several what checks take for granted of each other.
    const int64_t num_fields = NumFields(plan);
    for (int64_t changes = random.Chance(70) ? 1 : 1 + random.Below(4); changes > 0; --changes) {
      FieldMutation(random.Below(num_fields), random).Visit(plan);
    }
    ReadAll(plan);
  }
}

TEST(VerifierMutationTest, EveryReaderIsTotalOnThePlanOfAnotherModel) {
  for (Plan plan : ValidPlans()) {
    for (const Model& model : {Model(), StackModel(1, {8, 8}, DType::kBFloat16, 4).value()}) {
      plan.model = model;
      ReadAll(plan);
    }
  }
  ReadAll(Plan());
}

// ---- what the mutations found, by name ----

std::string FirstMessage(const Plan& plan) {
  const std::vector<Violation> violations = FindViolations(plan);
  return violations.empty() ? "" : violations[0].message;
}

TEST(VerifierMutationTest, NamesSizesThatDoNotFit) {
  using ::testing::HasSubstr;
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();
  constexpr int kLocal = static_cast<int>(Storage::kLocal), kMasters = static_cast<int>(Storage::kMasters);
  const Plan valid = testing::TwoUnitPlan().plan;
  Plan plan = valid;
  plan.memory.num_bytes[kLocal] = kMin;
  EXPECT_THAT(FirstMessage(plan), HasSubstr("-9223372036854775808 bytes of storage local"));
  plan.memory.num_bytes[kLocal] = plan.memory.num_bytes[kMasters] = kMax / 2 + 1;
  EXPECT_THAT(FirstMessage(plan), HasSubstr("exceed 9223372036854775807 with the storages before it"));
  plan = valid;
  plan.layout.units[0].groups[0].parameters[0].first_element = kMin;
  EXPECT_THAT(FirstMessage(plan), HasSubstr("layout is not that of its model"));
  plan = valid;
  plan.layout.units[1].groups[0].num_elements = kMax;
  EXPECT_THAT(FirstMessage(plan), HasSubstr("layout is not that of its model"));
}

TEST(VerifierMutationTest, NamesOptionsThatDoNotExist) {
  using ::testing::HasSubstr;
  const Plan valid = testing::TwoUnitPlan().plan;
  for (const int microbatches : {0, -1, std::numeric_limits<int>::min()}) {
    Plan plan = valid;
    plan.options.microbatches_per_graph = microbatches;
    EXPECT_THAT(FirstMessage(plan), HasSubstr("microbatches per graph, not at least 1"));
    EXPECT_THAT(Summarize(plan, 1).status().ToString(), HasSubstr("give one that passes Verify"));
  }
  Plan plan = valid;
  plan.options.tail = Tail(9);
  EXPECT_THAT(FirstMessage(plan), HasSubstr("an option of the plan has a value that does not exist"));
}

TEST(VerifierMutationTest, NamesTwoCarriedGradientsInOneSlot) {
  testing::PlanBuilder b;
  b.plan().options.gradient_slots = 2;
  const UnitId u0 = b.Unit("u0", 128), u1 = b.Unit("u1", 128);
  b.Call("c");
  const BufferId wire0 = b.Buffer("wire0", Storage::kCommunicating, 256, 0);
  const BufferId wire1 = b.Buffer("wire1", Storage::kCommunicating, 256, 256);
  const BufferId received = b.Buffer("received", Storage::kCommunicating, 128, 512);
  const BufferId acc0 = b.Buffer("acc0", Storage::kSession, 256, 0),
                 acc1 = b.Buffer("acc1", Storage::kSession, 256, 256);
  const BufferId norm = b.Buffer("norm", Storage::kSession, 16, 512);
  const BufferId gradient = b.Buffer("gradient", Storage::kLocal, 256, 0);
  b.AccumulateInto({acc0, acc1}, norm);
  const auto delivers = [&] { return b.Use(received, Access::kAssign, Role::kReceived); };
  const auto sums = [&](BufferId accumulator, int64_t unit) {
    return std::vector<BufferUse>{b.Use(received, Access::kRead, Role::kReceived),
                                  b.Use(accumulator, Access::kUpdate, Role::kAccumulator),
                                  {norm, unit * 8, 8, Access::kUpdate, Role::kNormPartials, 0}};
  };
  b.Start("body", 1).start.outstanding = {{u0, wire0, 0}, {u1, wire1, 1}};
  b.Command(Begin{}, Lane::kCompute);
  b.Command(Backward{CallId(0)}, Lane::kCompute,
            {b.Use(gradient, Access::kAssign, Role::kParameterGradient, 0),
             b.Use(gradient, Access::kAssign, Role::kParameterGradient, 1)});
  b.Command(ReduceScatter{u0, -1, 0, Transport::kNccl, Sum::kNccl, AxisId(0)}, Lane::kReduceScatter,
            {b.Use(wire0, Access::kRead, Role::kReduceBuffer), delivers()}, {testing::Fork(0)});
  b.Command(b.AccumulateOf(u0, -1), Lane::kReduceScatter, sums(acc0, 0));
  b.Command(ReduceScatter{u1, -1, 0, Transport::kNccl, Sum::kNccl, AxisId(0)}, Lane::kReduceScatter,
            {b.Use(wire1, Access::kRead, Role::kReduceBuffer), delivers()});
  b.Command(b.AccumulateOf(u1, -1), Lane::kReduceScatter, sums(acc1, 1));
  b.Command(End{}, Lane::kCompute, {}, {testing::Join(5)});
  EXPECT_EQ(FirstMessage(b.Build()),
            "the schedule starts with the gradients of u0 and u1 and reduces both in gradient slot 0");
}

}  // namespace
}  // namespace reprise
