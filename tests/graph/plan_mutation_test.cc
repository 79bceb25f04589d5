// What Verify accepts is right: of many plans with something changed, all that it accepts leave the same bytes as the
// plan that they were made from, in any order that they allow, and touch no memory that is not theirs.
//
// REPRISE_TEST_MUTANTS sets how many are made (40000 take ten seconds) and tells how many of each kind are accepted,
// REPRISE_TEST_FIRST_MUTANT with which one to begin.
#include <array>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/planner.h"
#include "reprise/core/verifier.h"
#include "reprise/graph/host_world.h"
#include "tests/conformance/hash_compute.h"
#include "tests/conformance/plan_runner.h"
#include "tests/graph/plan_mutations.h"
#include "tests/testing/random_model.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

constexpr uint64_t kMutants = 4000;  // takes a second
constexpr uint64_t kMutantsPerPlan = 20;
constexpr int kGraphs = 2;  // of a step, so that the body runs
constexpr int kSteps = 2;
constexpr uint64_t kOrders = 3;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  uint64_t number = 0;
  const char* const text = std::getenv(name);
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : otherwise;
}

// Two calls that update one state, as a cache of keys and values is.
Model ModelWithState() {
  ModelBuilder builder;
  const UnitId unit = builder.AddUnit("u");
  builder.AddParameter(unit, {"u.w", {3, 5}});
  const TensorId x = builder.AddInput({"x", {4}, DType::kFloat32});
  const TensorId cache = builder.AddState({"cache", {6}, DType::kFloat32});
  const TensorId a = builder.AddActivation({"a", {4}, DType::kFloat32});
  const TensorId loss = builder.AddOutput({"loss", {}, DType::kFloat32});
  builder.AddCall({.name = "c", .units = {unit}, .inputs = {x}, .outputs = {a}, .saved = {x}, .state = {cache}});
  builder.AddCall({.name = "d", .inputs = {a}, .outputs = {loss}, .saved = {a}, .state = {cache}});
  builder.SetLoss(loss);
  return builder.Build().value();
}

Plan RandomPlan(uint64_t seed) {
  Random random(seed);
  const Model model = random.Chance(10) ? ModelWithState() : RandomModel(seed, {.max_units = 4, .max_bytes = 128});
  const int world_size = 1 + static_cast<int>(random.Below(3));
  const bool forward = random.Chance(20);
  PlanOptions options = RandomPlanOptions(random);
  const auto plan = [&] {
    return forward ? PlanForward(model, world_size, options) : PlanTraining(model, world_size, options);
  };
  options.weight_slots = 1 + static_cast<int>(random.Below(4));
  if (const absl::StatusOr<Plan> small = plan(); small.ok()) return *small;
  options.weight_slots.reset();  // as many as the model needs
  return plan().value();
}

// What a run leaves behind; an error's text where it fails.
std::string Outcome(const Plan& plan, ReplayOrder order, uint64_t seed) {
  const absl::StatusOr<std::shared_ptr<World>> world =
      CreateHostWorld({.size = plan.world_size(), .order = order, .seed = seed});
  const absl::StatusOr<ComputeTable> compute = HashCompute(plan.model);
  if (!world.ok() || !compute.ok()) return "no world or compute";
  auto runner = PlanRunner::Create(*world, plan, *compute, HashParameter, {.clip_norm = 1e-3f, .guard_bytes = 4096});
  if (!runner.ok()) return absl::StrCat("cannot be recorded: ", runner.status().message());
  for (int step = 0; step < kSteps; ++step) {
    const absl::Status status = (*runner)->RunStep(kGraphs * *plan.options.microbatches_per_graph, HashInput);
    if (!status.ok()) return absl::StrCat("fails: ", status.message());
  }
  if (const absl::Status status = (*runner)->CheckGuards(); !status.ok()) return std::string(status.message());
  const absl::StatusOr<std::string> bytes = (*runner)->ReadAll();
  return bytes.ok() ? *bytes : std::string(bytes.status().message());
}

struct Counts {
  int64_t made = 0, accepted = 0, by_meaning_alone = 0, wrong = 0;
};

TEST(PlanMutationTest, WhatVerifyAcceptsLeavesTheSameBytes) {
  const uint64_t first = FromEnvironment("REPRISE_TEST_FIRST_MUTANT", 0);
  const uint64_t last = first + FromEnvironment("REPRISE_TEST_MUTANTS", kMutants);
  const bool tells = std::getenv("REPRISE_TEST_MUTANTS") != nullptr;
  std::array<Counts, kNumMutationKinds> counts;
  Plan plan;
  std::string expected;
  for (uint64_t mutant = first; mutant < last; ++mutant) {
    if (mutant == first || mutant % kMutantsPerPlan == 0) {
      plan = RandomPlan(mutant / kMutantsPerPlan);
      ASSERT_THAT(Verify(plan), IsOk()) << mutant;
      expected.clear();
    }
    Random random(mutant ^ 0x3a17);
    const MutationKind kind = static_cast<MutationKind>(random.Below(kNumMutationKinds));
    Plan mutated = plan;
    Mutate(kind, random, mutated);
    // Two changes may hide what each of them breaks.
    if (kind != MutationKind::kAnyField && random.Chance(20))
      Mutate(static_cast<MutationKind>(random.Below(kNumMutationKinds)), random, mutated);
    if (mutated == plan) continue;
    Counts& count = counts[static_cast<int>(kind)];
    ++count.made;
    const std::vector<Violation> violations = FindViolations(mutated);
    if (!violations.empty()) {
      count.by_meaning_alone += violations[0].check == Check::kMeaning ? 1 : 0;
      continue;
    }
    ++count.accepted;
    if (expected.empty()) expected = Outcome(plan, ReplayOrder::kIssue, 0);
    ASSERT_GT(expected.size(), 100u) << mutant << ": " << expected;
    bool same = true;
    for (uint64_t order = 0; order < kOrders && same; ++order) {
      const std::string outcome = Outcome(mutated, ReplayOrder::kAdversarial, order);
      same = outcome == expected;
      EXPECT_TRUE(same) << "mutant " << mutant << ", " << Name(kind) << ", order " << order << ": "
                        << (outcome.size() < 500 ? outcome : "other bytes") << "\n"
                        << (tells ? ToText(plan) + ToText(mutated) : "");
    }
    count.wrong += same ? 0 : 1;
  }
  Counts all;
  for (int kind = 0; kind < kNumMutationKinds; ++kind) {
    const Counts& count = counts[kind];
    if (tells) {
      std::cout << Name(static_cast<MutationKind>(kind)) << ": " << count.made << " made, " << count.by_meaning_alone
                << " refused by meaning alone, " << count.accepted << " accepted, " << count.wrong << " wrong\n";
    }
    all.made += count.made;
    all.by_meaning_alone += count.by_meaning_alone;
  }
  // Otherwise the other checks refuse so many that this shows nothing of what a plan means.
  EXPECT_GT(all.by_meaning_alone, all.made / 10);
}

}  // namespace
}  // namespace reprise::testing
