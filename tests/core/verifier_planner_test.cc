// What the planner makes passes, and each of its waits is needed for the reason that it gives.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "reprise/core/verifier.h"
#include "tests/testing/random_model.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/violations.h"

namespace reprise {
namespace {

using reprise::testing::CheckOf;
using reprise::testing::IsOk;
using reprise::testing::Random;
using reprise::testing::RandomModel;
using reprise::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PlanOptions RandomOptions(Random& random) {
  PlanOptions options;
  options.prefetch_depth = static_cast<int>(random.Below(3));
  options.weight_slots = static_cast<int>(2 + random.Below(4));
  options.gradient_slots = static_cast<int>(2 + random.Below(3));
  options.microbatches_per_graph = static_cast<int>(1 + random.Below(2));
  if (random.Chance(30)) options.residency = Residency::kOff;
  if (random.Chance(30)) {
    options.reduce = Reduce::kOncePerStep;
  } else if (random.Chance(50)) {
    options.tail = Tail::kCarried;
  }
  if (random.Chance(30)) options.transports = EveryUnit(Transport::kCopyEngine);
  if (options.transports.empty()) {
    options.transports = {{random.Below(4000), random.Chance(50) ? Transport::kSymmetric : Transport::kNccl}};
  }
  if (random.Chance(30)) options.reduce_dtype = DType::kFloat32;
  return options;
}

// Random plans of both kinds; fewer where there are too few slots for the model.
std::vector<Plan> RandomPlans(uint64_t seed, int max_units) {
  Random random(seed);
  const Model model = RandomModel(seed, {.max_units = max_units});
  const int world_size = static_cast<int>(1 + random.Below(4));
  const PlanOptions options = RandomOptions(random);
  std::vector<Plan> plans;
  for (const auto& plan : {PlanTraining(model, world_size, options), PlanForward(model, world_size, options)}) {
    if (plan.ok()) plans.push_back(*plan);
  }
  return plans;
}

TEST(VerifierPlannerTest, RefusesBuffersOfTrainingInForwardPlansAndDtypesThatAreNoFloats) {
  const Model model = StackModel(2, {64, 64}, DType::kBFloat16, 8).value();
  const Plan forward = PlanForward(model, 2, {}).value(), training = PlanTraining(model, 2, {}).value();
  ASSERT_THAT(Verify(forward), IsOk());
  const std::vector<std::pair<const char*, std::function<void(Plan&)>>> changes = {
      {"step state", [](Plan& p) { p.step_state = BufferId(0); }},
      {"partial norms", [](Plan& p) { p.norm_partials = BufferId(0); }},
      {"norm's parts", [](Plan& p) { p.norm_parts = BufferId(0); }},
      {"metrics", [](Plan& p) { p.metrics = p.control; }},
      {"accumulator", [](Plan& p) { p.unit_buffers[1].accumulators.push_back(BufferId(0)); }},
      {"optimizer state", [](Plan& p) { p.unit_buffers[0].optimizer_states.push_back({BufferId(0)}); }}};
  for (const auto& [what, change] : changes) {
    Plan plan = forward;
    change(plan);
    EXPECT_THAT(Verify(plan), StatusIs(absl::StatusCode::kInternal, HasSubstr("is of training, in a forward plan")))
        << what;
  }
  for (DType PlanOptions::*const dtype : {&PlanOptions::reduce_dtype, &PlanOptions::master_dtype}) {
    Plan plan = training;
    plan.options.*dtype = DType::kInt32;
    EXPECT_THAT(Verify(plan), StatusIs(absl::StatusCode::kInternal, HasSubstr("a value that does not exist")));
  }
}

// Whether a parameter may be unused or not: a gradient that a graph finds summed is added to, never assigned, and
// taken.
TEST(VerifierPlannerTest, RefusesToLoseASumOfAnyParameter) {
  ModelBuilder builder;
  const UnitId unit = builder.AddUnit("u");
  const ParameterId p = builder.AddParameter(unit, {.name = "p", .shape = {64}, .dtype = DType::kFloat32});
  builder.AddParameter(unit, {.name = "q", .shape = {64}});
  builder.AllowUnused(p);
  const TensorId x = builder.AddInput({.name = "x", .shape = {4}});
  const TensorId loss = builder.AddOutput({.name = "loss", .shape = {}, .dtype = DType::kFloat32});
  builder.AddCall({.name = "c", .units = {unit}, .inputs = {x}, .outputs = {loss}, .saved = {x}});
  builder.SetLoss(loss);
  const Model model = builder.Build().value();
  for (const DType reduce_dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Plan plan = PlanTraining(model, 2, {.reduce = Reduce::kOncePerStep, .reduce_dtype = reduce_dtype}).value();
    ASSERT_THAT(FindViolations(plan), IsEmpty());
    int sums = 0;
    Plan assigns = plan;
    for (ScheduledCommand& command : assigns.schedules[plan.body].commands) {
      for (BufferUse& use : command.uses) {
        if (use.role != Role::kParameterGradient || use.id != p.value()) continue;
        use.access = Access::kAssign;
        ++sums;
      }
    }
    EXPECT_EQ(sums, 1);
    EXPECT_THAT(FindViolations(assigns), ::testing::Not(IsEmpty())) << Name(reduce_dtype);
    Plan drops = plan;
    for (ScheduledCommand& command : drops.schedules[plan.finish].commands) {
      std::erase_if(command.uses, [&](const BufferUse& use) {
        const bool of_parameter = use.role == Role::kParameterGradient;
        const bool of_group = use.role == Role::kReduceBuffer || use.role == Role::kReceived ||
                              use.role == Role::kAccumulator || use.role == Role::kNormPartials;
        return (of_parameter && use.id == p.value()) || (of_group && use.id == plan.layout.parameters[p.value()].group);
      });
    }
    EXPECT_THAT(FindViolations(drops), ::testing::Not(IsEmpty())) << Name(reduce_dtype);
  }
}

TEST(VerifierPlannerTest, AcceptsPlans) {
  constexpr int kSeeds = 400;
  int plans = 0;
  for (int seed = 0; seed < kSeeds && !HasFailure(); ++seed) {
    for (const Plan& plan : RandomPlans(seed, 12)) {
      EXPECT_THAT(FindViolations(plan), IsEmpty()) << "seed " << seed;
      ++plans;
    }
  }
  EXPECT_GT(plans, kSeeds);  // otherwise the planner refuses too many to prove anything
}

// Removes each wait of the schedule in turn; returns how many.
int RemoveEachWait(Plan& plan, Schedule& schedule) {
  int removed = 0;
  for (size_t c = 0; c < schedule.commands.size(); ++c) {
    std::vector<Wait>& waits = schedule.commands[c].waits;
    const std::vector<Wait> whole = waits;
    for (size_t w = 0; w < whole.size(); ++w, ++removed) {
      waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(w));
      const std::vector<Violation> violations = FindViolations(plan);
      waits = whole;
      const bool expected = !violations.empty() && violations[0].check == CheckOf(whole[w].reason);
      EXPECT_TRUE(expected) << schedule.name << " #" << c << " without the wait for #" << whole[w].command.value()
                            << " (" << Name(whole[w].reason)
                            << "): " << (violations.empty() ? "no violation" : violations[0].message);
    }
  }
  return removed;
}

TEST(VerifierPlannerTest, DefaultsSuitEveryModel) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Model model = RandomModel(seed);
    for (const PlanOptions& options :
         {PlanOptions{}, PlanOptions{.microbatches_per_graph = 2, .tail = Tail::kCarried}}) {
      const absl::StatusOr<Plan> plan = PlanTraining(model, 2, options);
      ASSERT_TRUE(plan.ok()) << "seed " << seed << ": " << plan.status();
      ASSERT_THAT(FindViolations(*plan), IsEmpty()) << "seed " << seed;
    }
  }
}

TEST(VerifierPlannerTest, EveryWaitIsNeededForItsReason) {
  constexpr int kSeeds = 60;
  int removed = 0;
  for (int seed = 0; seed < kSeeds && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    for (Plan& plan : RandomPlans(seed, 5)) {
      for (Schedule& schedule : plan.schedules) removed += RemoveEachWait(plan, schedule);
    }
  }
  EXPECT_GT(removed, 10 * kSeeds);
}

}  // namespace
}  // namespace reprise
