// What the planner makes passes, and each of its waits is needed for the reason that it gives.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/planner.h"
#include "reprise/core/verifier.h"
#include "tests/testing/violations.h"

namespace reprise {
namespace {

using reprise::testing::CheckOf;
using ::testing::IsEmpty;

bool OneIn(int n, std::mt19937& random) { return random() % n == 0; }

void AddParameters(ModelBuilder& builder, UnitId unit, const std::string& name, std::mt19937& random) {
  for (int i = 0; i < 3; ++i) {
    ParameterSpec spec = {.name = absl::StrCat(name, ".p", i), .shape = {1 + int64_t(random() % 300)}};
    if (OneIn(4, random)) spec.dtype = DType::kFloat32;
    if (OneIn(6, random)) spec.wire = DType::kFloat32;
    spec.trainable = !OneIn(6, random);
    builder.AddParameter(unit, spec);
    if (OneIn(2, random)) return;
  }
}

// A chain of calls with skips, tied units, calls without units, forward-only units and recomputation.
absl::StatusOr<Model> RandomModel(std::mt19937& random) {
  ModelBuilder builder;
  std::vector<TensorId> values = {builder.AddInput({.name = "x", .shape = {16}})};
  std::vector<UnitId> units;
  const int num_calls = 2 + int(random() % 5);
  for (int i = 0; i < num_calls; ++i) {
    CallSpec call = {.name = absl::StrCat("c", i)};
    if (!OneIn(6, random)) {
      units.push_back(builder.AddUnit(absl::StrCat("u", i)));
      AddParameters(builder, units.back(), absl::StrCat("u", i), random);
      (OneIn(5, random) ? call.forward_only_units : call.units).push_back(units.back());
    }
    if (units.size() > 1 && OneIn(4, random)) call.units.push_back(units.front());
    call.inputs = {values.back()};
    if (values.size() > 1 && OneIn(3, random)) call.inputs.push_back(values[values.size() - 2]);
    values.push_back(builder.AddActivation({.name = absl::StrCat("a", i), .shape = {64}}));
    call.outputs = {values.back()};
    call.saved = {call.inputs.front()};
    if (OneIn(2, random)) call.saved.push_back(call.outputs.front());
    call.recompute = OneIn(4, random);
    if (OneIn(2, random)) call.scratch_bytes = 100;
    builder.AddCall(call);
  }
  const TensorId loss = builder.AddOutput({.name = "loss", .shape = {}, .dtype = DType::kFloat32});
  builder.AddCall({.name = "loss", .inputs = {values.back()}, .outputs = {loss}, .saved = {values.back()}});
  builder.SetLoss(loss);
  return builder.Build();
}

PlanOptions RandomOptions(std::mt19937& random) {
  PlanOptions options;
  options.prefetch_depth = int(random() % 3);
  options.weight_slots = 2 + int(random() % 3);
  options.gradient_slots = 2 + int(random() % 2);
  options.microbatches_per_graph = 1 + int(random() % 2);
  if (OneIn(3, random)) options.residency = Residency::kOff;
  if (OneIn(3, random)) {
    options.reduce = Reduce::kOncePerStep;
  } else if (OneIn(2, random)) {
    options.tail = Tail::kCarried;
  }
  if (OneIn(3, random)) options.transport = Transport::kCopyEngine;
  if (OneIn(3, random)) options.wire = DType::kFloat32;
  return options;
}

// Random plans of both kinds; seeds whose model or options the planner refuses give none.
std::vector<Plan> PlansOf(int seed) {
  std::mt19937 random(seed);
  const absl::StatusOr<Model> model = RandomModel(random);
  if (!model.ok()) return {};
  const int world_size = 1 + int(random() % 4);
  const PlanOptions options = RandomOptions(random);
  std::vector<Plan> plans;
  for (const auto& plan : {PlanTraining(*model, world_size, options), PlanForward(*model, world_size, options)}) {
    if (plan.ok()) plans.push_back(*plan);
  }
  return plans;
}

TEST(VerifierPlannerTest, AcceptsPlans) {
  constexpr int kSeeds = 400;
  int plans = 0;
  for (int seed = 0; seed < kSeeds && !HasFailure(); ++seed) {
    for (const Plan& plan : PlansOf(seed)) {
      EXPECT_THAT(FindViolations(plan), IsEmpty()) << "seed " << seed;
      ++plans;
    }
  }
  EXPECT_GT(plans, kSeeds);  // otherwise the planner refuses too many to prove anything
}

TEST(VerifierPlannerTest, EveryWaitIsNeededForItsReason) {
  constexpr int kSeeds = 40;
  int waits = 0;
  for (int seed = 0; seed < kSeeds && !HasFailure(); ++seed) {
    for (Plan& plan : PlansOf(seed)) {
      for (Schedule& schedule : plan.schedules) {
        for (size_t c = 0; c < schedule.commands.size(); ++c) {
          std::vector<Wait>& waits_of = schedule.commands[c].waits;
          const std::vector<Wait> whole = waits_of;
          for (const Wait& wait : whole) {
            waits_of.erase(std::find(waits_of.begin(), waits_of.end(), wait));
            const std::vector<Violation> violations = FindViolations(plan);
            ++waits;
            const Check found = violations.empty() ? Check::kForm : violations[0].check;
            EXPECT_EQ(Name(found), Name(CheckOf(wait.reason)))
                << "seed " << seed << ", " << schedule.name << " #" << c << " without the wait for #"
                << wait.command.value() << ": " << (violations.empty() ? "" : violations[0].message);
            waits_of = whole;
          }
        }
      }
    }
  }
  EXPECT_GT(waits, 20 * kSeeds);
}

}  // namespace
}  // namespace reprise
