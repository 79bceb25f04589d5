// Gradients add up over the microbatches of a step, and over nothing else.
#include <cmath>

#include "tests/conformance/conformance.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

// Accumulators of all units on one local rank, as they are before the step.
absl::StatusOr<std::vector<float>> Accumulators(PlanRunner& runner, int local) {
  std::vector<float> all;
  for (const UnitBuffers& unit : runner.plan().unit_buffers) {
    for (const BufferId buffer : unit.accumulators) {
      REPRISE_ASSIGN_OR_RETURN(const std::vector<float> values, runner.ReadAs<float>(local, buffer));
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

// The same input in every microbatch.
double SameInput(int rank, int64_t, TensorId tensor, int64_t element) {
  return ClassifierInput(rank, 0, tensor, element);
}

absl::Status Accumulate(PlanRunner& runner, int microbatches, const InputValue& inputs) {
  const Plan& plan = runner.plan();
  REPRISE_RETURN_IF_ERROR(runner.BeginStep(microbatches));
  for (int m = 0; m < microbatches; m += *plan.options.microbatches_per_graph) {
    REPRISE_RETURN_IF_ERROR(runner.ReplayGraph(m == 0 ? plan.first : plan.body, inputs));
  }
  return plan.finish < 0 ? absl::OkStatus() : runner.Replay(plan.finish);
}

TEST_P(ConformanceTest, AccumulationAddsUpTheMicrobatchesOfAStep) {
  const Classifier classifier = MakeClassifier(2, DType::kBFloat16);
  const PlanOptions variants[] = {{},
                                  {.microbatches_per_graph = 2},
                                  {.tail = Tail::kCarried},
                                  {.microbatches_per_graph = 2, .tail = Tail::kCarried}};
  for (const PlanOptions& options : variants) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(classifier.model, ranks(), options));
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PlanRunner> runner,
                                 NewRunner(plan, classifier.compute, ClassifierParameter));
    ASSERT_THAT(Accumulate(*runner, 2, SameInput), IsOk());
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> two, Accumulators(*runner, 0));
    // Sums of four equal values are twice those of two: float addition is exact when doubling, and x + x + x rounds
    // once, by at most half a unit in the last place of 4x.
    ASSERT_THAT(Accumulate(*runner, 4, SameInput), IsOk());
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> four, Accumulators(*runner, 0));
    ASSERT_EQ(two.size(), four.size());
    int64_t nonzero = 0;
    for (size_t i = 0; i < two.size(); ++i) {
      ASSERT_NEAR(four[i], 2 * two[i], std::abs(4 * two[i]) * 0x1p-24) << "element " << i;
      nonzero += two[i] != 0 ? 1 : 0;
    }
    EXPECT_GT(nonzero, 0);
  }
}

TEST_P(ConformanceTest, AccumulationOncePerStepAddsUpTheMicrobatchesOfAStep) {
  const Classifier classifier = MakeClassifier(2, DType::kBFloat16);
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan,
                               PlanTraining(classifier.model, ranks(), {.reduce = Reduce::kOncePerStep}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PlanRunner> runner,
                               NewRunner(plan, classifier.compute, ClassifierParameter));
  ASSERT_THAT(Accumulate(*runner, 1, SameInput), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> one, Accumulators(*runner, 0));
  ASSERT_THAT(Accumulate(*runner, 2, SameInput), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> two, Accumulators(*runner, 0));
  for (size_t i = 0; i < one.size(); ++i) ASSERT_EQ(two[i], 2 * one[i]) << "element " << i;
}

TEST_P(ConformanceTest, AccumulationStartsAnewEachStep) {
  const Classifier classifier = MakeClassifier(2, DType::kBFloat16);
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(classifier.model, ranks(), {}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PlanRunner> runner,
                               NewRunner(plan, classifier.compute, ClassifierParameter));
  ASSERT_THAT(Accumulate(*runner, 1, SameInput), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, Accumulators(*runner, 0));
  // NaN everywhere in between: assigning must not read it.
  ASSERT_THAT(
      Accumulate(*runner, 3, [](int, int64_t, TensorId tensor, int64_t) { return tensor.value() == 0 ? NAN : 0.0; }),
      IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> poisoned, Accumulators(*runner, 0));
  EXPECT_TRUE(std::isnan(poisoned[0]));
  ASSERT_THAT(Accumulate(*runner, 1, SameInput), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> again, Accumulators(*runner, 0));
  EXPECT_EQ(again, expected);
}

TEST_P(ConformanceTest, AccumulationThatIsNotFiniteSkipsTheUpdate) {
  const Classifier classifier = MakeClassifier(2, DType::kBFloat16);
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(classifier.model, ranks(), {}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PlanRunner> runner,
                               NewRunner(plan, classifier.compute, ClassifierParameter));
  const BufferId master = plan.unit_buffers[0].masters[0];
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::string before, runner->Read(0, master));
  ASSERT_THAT(
      runner->RunStep(1, [](int, int64_t, TensorId tensor, int64_t) { return tensor.value() == 0 ? NAN : 0.0; }),
      IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::string skipped, runner->Read(0, master));
  EXPECT_TRUE(skipped == before);
  ASSERT_THAT(runner->RunStep(1, ClassifierInput), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::string updated, runner->Read(0, master));
  EXPECT_FALSE(updated == before);
}

}  // namespace
}  // namespace reprise::testing
