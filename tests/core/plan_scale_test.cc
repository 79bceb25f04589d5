// Planning stays fast for very deep models. Times are processor time, the least of several, so that a busy machine does
// not matter.
#include <algorithm>
#include <cmath>
#include <ctime>
#include <iostream>
#include <limits>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/model.h"
#include "reprise/core/plan.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "reprise/core/verifier.h"

namespace reprise {
namespace {

// Assertions and sanitizers are on exactly where NDEBUG is not defined.
#ifdef NDEBUG
constexpr bool kOptimised = true;
#else
constexpr bool kOptimised = false;
#endif

Model Stack(int units) { return StackModel(units, {64, 64}, DType::kBFloat16, /*tokens=*/16).value(); }

// One call of `units` units with `parameters` parameters each, and the loss.
Model WideModel(int units, int parameters) {
  ModelBuilder builder;
  CallSpec call = {.name = "c"};
  for (int u = 0; u < units; ++u) {
    call.units.push_back(builder.AddUnit(absl::StrCat("u", u)));
    for (int p = 0; p < parameters; ++p) {
      builder.AddParameter(call.units[u], {.name = absl::StrCat("u", u, ".p", p), .shape = {64}});
    }
  }
  const TensorId loss = builder.AddOutput({.name = "loss", .dtype = DType::kFloat32});
  call.outputs = {loss};
  builder.AddCall(call);
  builder.SetLoss(loss);
  return builder.Build().value();
}

// Calls of one unit, each of which reads its weights and saves what it reads for its backward, in a chain; and the
// loss.
Model ChainOfCalls(int calls) {
  ModelBuilder builder;
  const UnitId unit = builder.AddUnit("u");
  builder.AddParameter(unit, {.name = "w", .shape = {64}});
  TensorId x = builder.AddInput({.name = "x", .shape = {16}});
  for (int c = 0; c < calls; ++c) {
    const TensorId y = builder.AddActivation({.name = absl::StrCat("y", c), .shape = {16}});
    builder.AddCall({.name = absl::StrCat("c", c), .units = {unit}, .inputs = {x}, .outputs = {y}, .saved = {x}});
    x = y;
  }
  const TensorId loss = builder.AddOutput({.name = "loss", .dtype = DType::kFloat32});
  builder.AddCall({.name = "loss", .inputs = {x}, .outputs = {loss}});
  builder.SetLoss(loss);
  return builder.Build().value();
}

struct Seconds {
  double plan = std::numeric_limits<double>::infinity(), verify = plan;
};

Seconds SecondsOf(const Model& model, const PlanOptions& options, int repetitions) {
  Seconds least;
  for (int i = 0; i < repetitions; ++i) {
    const std::clock_t start = std::clock();
    const absl::StatusOr<Plan> plan = PlanTraining(model, /*world_size=*/2, options);
    const std::clock_t planned = std::clock();
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (!plan.ok()) break;
    EXPECT_TRUE(Verify(*plan).ok()) << Verify(*plan);
    const std::clock_t verified = std::clock();
    least.plan = std::min(least.plan, static_cast<double>(planned - start) / CLOCKS_PER_SEC);
    least.verify = std::min(least.verify, static_cast<double>(verified - planned) / CLOCKS_PER_SEC);
  }
  return least;
}

TEST(PlanScaleTest, DeepStackIsPlannedWithTheExpectedTraffic) {
  constexpr int kUnits = 2000;
  const absl::StatusOr<Plan> plan = PlanTraining(Stack(kUnits), /*world_size=*/2, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const absl::StatusOr<PlanSummary> summary = Summarize(*plan, /*microbatches=*/1);
  ASSERT_TRUE(summary.ok()) << summary.status();
  // Forward and backward each need every unit; the two units that are resident in between are gathered once.
  EXPECT_EQ(summary->all_gathers, 2 * kUnits - 2);
  EXPECT_EQ(summary->reduce_scatters, kUnits);
  EXPECT_TRUE(Verify(*plan).ok()) << Verify(*plan);
}

TEST(PlanScaleTest, TenThousandUnitsArePlannedIn1200MillisecondsAndVerifiedIn800) {
  if (!kOptimised) GTEST_SKIP() << "times are promised for optimised builds only";
  const Seconds least = SecondsOf(Stack(10000), {}, 3);
  std::cout << "10,000 units: planned in " << least.plan << " s, verified in " << least.verify << " s\n";
  EXPECT_LT(least.plan, 1.2);
  EXPECT_LT(least.verify, 0.8);
}

struct Growth {
  const char* name;
  Model (*make)(int size);
  PlanOptions (*options)(int size);
};
class PlanScaleTestOf : public ::testing::TestWithParam<Growth> {};

PlanOptions Default(int) { return {}; }

INSTANTIATE_TEST_SUITE_P(
    All, PlanScaleTestOf,
    ::testing::Values(Growth{"Units", Stack, Default}, Growth{"CallsOfAUnit", ChainOfCalls, Default},
                      Growth{"ParametersOfAUnit", [](int size) { return WideModel(1, size); }, Default},
                      Growth{"UnitsOfACall", [](int size) { return WideModel(size, 1); }, Default},
                      Growth{"ResidentUnits", Stack, [](int size) { return PlanOptions{.weight_slots = size}; }},
                      Growth{"GradientSlots", Stack, [](int size) { return PlanOptions{.gradient_slots = size}; }},
                      Growth{"UnitsOfACarriedTail", [](int size) { return WideModel(size, 1); },
                             [](int) { return PlanOptions{.tail = Tail::kCarried}; }},
                      Growth{"Microbatches", [](int) { return Stack(2); },
                             [](int size) { return PlanOptions{.microbatches_per_graph = size / 2}; }}),
    [](const auto& info) { return info.param.name; });

TEST_P(PlanScaleTestOf, TimeGrowsAsSizeTimesItsLogarithm) {
  if (!kOptimised) GTEST_SKIP() << "times are promised for optimised builds only";
  constexpr int kFew = 500, kMany = 4000;
  // Thrice the ratio of n log n, which is 11: the larger plan leaves the caches, and other work may take them.
  // Quadratic growth would be 64 times.
  constexpr double kAllowance = 3;
  const double expected = kMany * std::log(kMany) / (kFew * std::log(kFew));
  const Seconds few = SecondsOf(GetParam().make(kFew), GetParam().options(kFew), 9);
  const Seconds many = SecondsOf(GetParam().make(kMany), GetParam().options(kMany), 4);
  EXPECT_LT(many.plan, kAllowance * expected * few.plan) << few.plan << " s for " << kFew << " planned";
  EXPECT_LT(many.verify, kAllowance * expected * few.verify) << few.verify << " s for " << kFew << " verified";
}

}  // namespace
}  // namespace reprise
