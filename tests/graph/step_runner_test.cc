// Replaying a plan's graphs on random numbers, for measurements.
#include "graph/step_runner.h"

#include <algorithm>
#include <memory>
#include <string>

#include "reprise/graph/host_world.h"
#include "tests/conformance/conformance.h"
#include "tests/testing/status_matchers.h"

namespace reprise::internal {
namespace {

using reprise::testing::Classifier;
using reprise::testing::IsOk;
using reprise::testing::MakeClassifier;

absl::StatusOr<std::string> Accumulated(StepRunner& runner, int bodies) {
  REPRISE_RETURN_IF_ERROR(runner.BeginStep());
  REPRISE_RETURN_IF_ERROR(runner.ReplayFirst());
  for (int i = 0; i < bodies; ++i) REPRISE_RETURN_IF_ERROR(runner.ReplayBody());
  return runner.ReadAccumulators();
}

TEST(StepRunnerTest, LeavesTheSameSumsHoweverItRuns) {
  const Classifier classifier = MakeClassifier(3, DType::kBFloat16);
  std::string first;
  for (const Execution execution : {Execution::kEager, Execution::kGraph}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, CreateHostWorld({.size = 2}));
    REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(classifier.model, 2, {.optimizer_states = 0}));
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<StepRunner> runner,
                                 StepRunner::Create(internal::MachineOf(world), plan, classifier.compute));
    EXPECT_EQ(runner->plan(), plan);
    ASSERT_THAT(runner->Record(execution), IsOk());
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::string sums, Accumulated(*runner, 1));
    EXPECT_TRUE(std::any_of(sums.begin(), sums.end(), [](char c) { return c != 0; }));
    if (first.empty()) first = sums;
    EXPECT_EQ(sums, first);
    // A step begins anew, and each microbatch adds.
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::string more, Accumulated(*runner, 2));
    EXPECT_NE(more, first);
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::string again, Accumulated(*runner, 1));
    EXPECT_EQ(again, first);
  }
}

}  // namespace
}  // namespace reprise::internal
