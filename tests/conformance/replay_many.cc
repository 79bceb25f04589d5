// A recording gives the same bytes however often it is replayed, and the same as eager execution.
#include <memory>
#include <vector>

#include "tests/conformance/conformance.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

TEST_P(ConformanceTest, ReplayManyGivesTheSameBytesWithMemoryChurnBetween) {
  const Classifier classifier = MakeClassifier(3, DType::kBFloat16);
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(classifier.model, ranks(), {}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PlanRunner> runner,
                               NewRunner(plan, classifier.compute, ClassifierParameter));
  const auto inputs = [](int rank, int64_t, TensorId tensor, int64_t element) {
    return ClassifierInput(rank, 0, tensor, element);
  };
  std::string expected;
  for (int replay = 0; replay < 100; ++replay) {
    ASSERT_THAT(runner->BeginStep(1), IsOk());
    ASSERT_THAT(runner->ReplayGraph(plan.first, inputs), IsOk());
    REPRISE_ASSERT_OK_AND_ASSIGN(
        const std::shared_ptr<internal::MemoryBlock> churn,
        internal::MachineOf(*world_).Allocate(internal::MemoryKind::kLocal, 1024 * (1 + replay % 7)));
    std::string bytes;
    for (const UnitBuffers& unit : plan.unit_buffers) {
      REPRISE_ASSERT_OK_AND_ASSIGN(const std::string values, runner->Read(0, unit.accumulators[0]));
      bytes += values;
    }
    if (replay == 0) expected = bytes;
    ASSERT_TRUE(bytes == expected) << "replay " << replay;
  }
  REPRISE_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<PlanRunner> eager,
      PlanRunner::Create(world_, plan, classifier.compute, ClassifierParameter, {.execution = Execution::kEager}));
  ASSERT_THAT(eager->BeginStep(1), IsOk());
  ASSERT_THAT(eager->ReplayGraph(plan.first, inputs), IsOk());
  std::string bytes;
  for (const UnitBuffers& unit : plan.unit_buffers) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::string values, eager->Read(0, unit.accumulators[0]));
    bytes += values;
  }
  EXPECT_TRUE(bytes == expected) << "eager";
}

TEST_P(ConformanceTest, ReplayManyStepsEqualsEagerExecution) {
  const Classifier classifier = MakeClassifier(3, DType::kFloat32);
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(classifier.model, ranks(), {}));
  std::vector<std::string> left;
  for (const Execution execution : {GetParam().execution, Execution::kEager}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(
        const std::unique_ptr<PlanRunner> runner,
        PlanRunner::Create(world_, plan, classifier.compute, ClassifierParameter,
                           {.execution = execution, .optimizer = Sgd{.momentum = 0.9f}, .clip_norm = 0.5f}));
    for (int step = 0; step < 10; ++step) ASSERT_THAT(runner->RunStep(2, ClassifierInput), IsOk());
    REPRISE_ASSERT_OK_AND_ASSIGN(left.emplace_back(), runner->ReadAll());
  }
  EXPECT_TRUE(left[0] == left[1]);
}

}  // namespace
}  // namespace reprise::testing
