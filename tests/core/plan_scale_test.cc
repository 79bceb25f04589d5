// Planning stays fast for very deep models. Times are processor time, the least of several, so that a busy machine does
// not matter.
#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>

#include "absl/status/statusor.h"
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

double SecondsToPlan(const Model& model, int repetitions) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < repetitions; ++i) {
    const std::clock_t start = std::clock();
    const absl::StatusOr<Plan> plan = PlanTraining(model, /*world_size=*/2, {});
    const double elapsed = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    EXPECT_TRUE(plan.ok()) << plan.status();
    least = std::min(least, elapsed);
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

TEST(PlanScaleTest, TenThousandUnitsTakeLessThanTwoSeconds) {
  if (!kOptimised) GTEST_SKIP() << "times are promised for optimised builds only";
  EXPECT_LT(SecondsToPlan(Stack(10000), 3), 2.0);
}

TEST(PlanScaleTest, TimeGrowsAsUnitsTimesTheirLogarithm) {
  if (!kOptimised) GTEST_SKIP() << "times are promised for optimised builds only";
  constexpr int kFew = 1000, kMany = 8000;
  // Twice the ratio of n log n: the larger plan leaves the caches. Quadratic growth would be 64 times, above it.
  constexpr double kAllowance = 2;
  const double expected = kMany * std::log(kMany) / (kFew * std::log(kFew));
  const double few = SecondsToPlan(Stack(kFew), 5);
  const double many = SecondsToPlan(Stack(kMany), 3);
  EXPECT_LT(many / few, kAllowance * expected) << few << " s for " << kFew << " units, " << many << " s for " << kMany;
}

}  // namespace
}  // namespace reprise
