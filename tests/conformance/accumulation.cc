// Gradients add up over the microbatches of a step, and over nothing else.
#include <cmath>

#include "reprise/core/norm_ranges.h"
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

// Where the last microbatch's reductions are: in its graph, in the next one, or in one of their own.
constexpr PlanOptions kVariants[] = {{},
                                     {.microbatches_per_graph = 2},
                                     {.tail = Tail::kCarried},
                                     {.microbatches_per_graph = 2, .tail = Tail::kCarried},
                                     {.reduce = Reduce::kOncePerStep},
                                     {.reduce = Reduce::kOncePerStep, .reduce_dtype = DType::kFloat32}};

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
  for (const DType reduce_dtype : {DType::kBFloat16, DType::kFloat32}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(
        const Plan plan,
        PlanTraining(classifier.model, ranks(), {.reduce = Reduce::kOncePerStep, .reduce_dtype = reduce_dtype}));
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PlanRunner> runner,
                                 NewRunner(plan, classifier.compute, ClassifierParameter));
    ASSERT_THAT(Accumulate(*runner, 1, SameInput), IsOk());
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> one, Accumulators(*runner, 0));
    ASSERT_THAT(Accumulate(*runner, 2, SameInput), IsOk());
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> two, Accumulators(*runner, 0));
    for (size_t i = 0; i < one.size(); ++i) ASSERT_EQ(two[i], 2 * one[i]) << "element " << i;
  }
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

// In any microbatch, of a step of any number.
TEST_P(ConformanceTest, AccumulationThatIsNotFiniteSkipsTheUpdate) {
  const Classifier classifier = MakeClassifier(2, DType::kBFloat16);
  for (const PlanOptions& options : kVariants) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(classifier.model, ranks(), options));
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PlanRunner> runner,
                                 NewRunner(plan, classifier.compute, ClassifierParameter));
    const BufferId master = plan.unit_buffers[0].masters[0];
    int64_t staged = 0;  // microbatches of earlier steps
    for (const int graphs : {1, 2, 1}) {
      const int microbatches = graphs * *plan.options.microbatches_per_graph;
      for (int broken = 0; broken < microbatches; ++broken) {
        REPRISE_ASSERT_OK_AND_ASSIGN(const std::string before, runner->Read(0, master));
        const InputValue inputs = [&](int rank, int64_t microbatch, TensorId tensor, int64_t element) {
          const bool is_broken = microbatch == staged + broken && tensor.value() == 0;
          return is_broken ? NAN : ClassifierInput(rank, microbatch, tensor, element);
        };
        ASSERT_THAT(runner->RunStep(microbatches, inputs), IsOk());
        staged += microbatches;
        REPRISE_ASSERT_OK_AND_ASSIGN(const std::string skipped, runner->Read(0, master));
        EXPECT_TRUE(skipped == before) << "microbatch " << broken << " of " << microbatches;
        ASSERT_THAT(runner->RunStep(microbatches, ClassifierInput), IsOk());
        staged += microbatches;
        REPRISE_ASSERT_OK_AND_ASSIGN(const std::string updated, runner->Read(0, master));
        EXPECT_FALSE(updated == before) << "after microbatch " << broken << " of " << microbatches;
      }
    }
  }
}

// All partial norms of a local rank, each with the sum of the squares of its range.
struct Norms {
  std::vector<double> got, want;
};
absl::StatusOr<Norms> ReadNorms(PlanRunner& runner, int local) {
  const Plan& plan = runner.plan();
  Norms norms;
  REPRISE_ASSIGN_OR_RETURN(norms.got, runner.ReadAs<double>(local, plan.norm_partials));
  norms.want.assign(norms.got.size(), 0);
  for (size_t u = 0; u < plan.unit_buffers.size(); ++u) {
    const UnitBuffers& unit = plan.unit_buffers[u];
    for (size_t g = 0; g < unit.accumulators.size(); ++g) {
      if (!unit.accumulators[g].valid()) continue;
      REPRISE_ASSIGN_OR_RETURN(const std::vector<float> values, runner.ReadAs<float>(local, unit.accumulators[g]));
      const int64_t range = NormRangeElements(static_cast<int64_t>(values.size()));
      for (size_t i = 0; i < values.size(); ++i) {
        const int64_t partial = unit.norm_partials[g] / static_cast<int64_t>(sizeof(double));
        norms.want[partial + static_cast<int64_t>(i) / range] += static_cast<double>(values[i]) * values[i];
      }
    }
  }
  return norms;
}

TEST_P(ConformanceTest, AccumulationTakesTheNormInTheLastMicrobatch) {
  const Classifier classifier = MakeClassifier(2, DType::kBFloat16);
  for (const PlanOptions& options : kVariants) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(classifier.model, ranks(), options));
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PlanRunner> runner,
                                 NewRunner(plan, classifier.compute, ClassifierParameter));
    const std::string poison(static_cast<size_t>(plan.buffer(plan.norm_partials).num_bytes), '\xff');
    for (const int graphs : {3, 1, 2}) {
      ASSERT_THAT(runner->Fill(plan.norm_partials, 0xff), IsOk());
      ASSERT_THAT(runner->BeginStep(graphs * *plan.options.microbatches_per_graph), IsOk());
      for (int graph = 0; graph < graphs; ++graph) {
        REPRISE_ASSERT_OK_AND_ASSIGN(const std::string partials, runner->Read(0, plan.norm_partials));
        EXPECT_TRUE(partials == poison) << "before graph " << graph << " of " << graphs;
        ASSERT_THAT(runner->ReplayGraph(graph == 0 ? plan.first : plan.body, ClassifierInput), IsOk());
      }
      if (plan.finish >= 0) {
        ASSERT_THAT(runner->Replay(plan.finish), IsOk());
      }
      REPRISE_ASSERT_OK_AND_ASSIGN(const Norms norms, ReadNorms(*runner, 0));
      for (size_t i = 0; i < norms.got.size(); ++i) {
        // Each sum has at most kNormTile terms, all positive.
        EXPECT_NEAR(norms.got[i], norms.want[i], 2 * kNormTile * 0x1p-53 * norms.want[i]) << "range " << i;
      }
      EXPECT_GT(norms.want[0], 0);
      ASSERT_THAT(runner->Replay(plan.step), IsOk());
    }
  }
}

}  // namespace
}  // namespace reprise::testing
