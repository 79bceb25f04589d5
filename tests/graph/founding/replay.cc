// Replays learn, repeat eager execution bit for bit, and see every change of the parameters.
#include "tests/graph/founding/founding.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using Values = std::vector<std::vector<float>>;

constexpr float kLearningRate = 0.25f;

TEST_P(FoundingTest, LossDecreasesOverReplays) {
  const Chain chain = MakeChain(Mlp(), DType::kFloat32);
  REPRISE_ASSERT_OK_AND_ASSIGN(const ChainTraining training, StartTraining(world_, chain, Options()));
  for (int replay = 0; replay < 5; ++replay) {  // of the same data
    ASSERT_THAT(RunMicrobatches(training, 0, {.learning_rate = kLearningRate}), IsOk());
    ASSERT_THAT(training.session->EndStep(), IsOk());
  }
  ASSERT_THAT(training.session->Synchronize(), IsOk());
  const std::vector<StepMetrics> metrics = training.session->PollMetrics();
  ASSERT_EQ(metrics.size(), 5u);
  for (size_t i = 1; i < metrics.size(); ++i) EXPECT_LT(metrics[i].loss, metrics[i - 1].loss) << "replay " << i;
}

// Some values for every parameter.
absl::Status Reload(ShardedParameters& parameters, int seed) {
  for (const Parameter& parameter : parameters.model().parameters()) {
    std::vector<float> values(static_cast<size_t>(NumElements(parameter.spec.shape)));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i * 7 + seed) % 23) / 64 - 0.1875f;
    REPRISE_RETURN_IF_ERROR(parameters.Write(parameter.spec.name, values));
  }
  return absl::OkStatus();
}

// Appends the step's losses, gradients and masters. Data and number of microbatches differ from step to step.
absl::Status RunStep(const ChainTraining& training, int64_t step, Values& left) {
  const int microbatches = static_cast<int>(1 + step % 3);
  REPRISE_RETURN_IF_ERROR(
      RunMicrobatches(training, step, {.learning_rate = kLearningRate, .microbatches = microbatches}));
  for (const int rank : training.parameters->world()->local_ranks()) {
    REPRISE_ASSIGN_OR_RETURN(left.emplace_back(), training.session->ReadOutput<float>(rank, training.chain.loss));
  }
  for (const Parameter& parameter : training.chain.model.parameters()) {
    REPRISE_ASSIGN_OR_RETURN(left.emplace_back(), training.session->ReadGradient(parameter.spec.name));
  }
  REPRISE_RETURN_IF_ERROR(training.session->EndStep());
  REPRISE_ASSIGN_OR_RETURN(const Values masters, ReadAll(*training.parameters));
  left.insert(left.end(), masters.begin(), masters.end());
  return absl::OkStatus();
}

TEST_P(FoundingTest, ReplaysEqualEagerExecutionBitForBit) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    std::vector<Values> results;
    for (const Execution execution : {Execution::kGraph, Execution::kEager}) {
      TrainOptions options = Options({}, AdamW{});
      options.run.execution = execution;
      REPRISE_ASSERT_OK_AND_ASSIGN(const ChainTraining training,
                                   StartTraining(world_, MakeChain(Mlp(), dtype), options));
      Values& left = results.emplace_back();
      for (int step = 0; step < 12; ++step) {
        if (step % 5 == 4) {
          ASSERT_THAT(Reload(*training.parameters, step), IsOk());
        }
        ASSERT_THAT(RunStep(training, step, left), IsOk());
      }
    }
    EXPECT_EQ(results[0], results[1]) << Name(dtype);
  }
}

// Nothing of the time before is in a slot, an accumulator or a graph.
TEST_P(FoundingTest, AfterAReloadASessionGoesOnAsANewOne) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Chain chain = MakeChain(Mlp(), dtype);
    REPRISE_ASSERT_OK_AND_ASSIGN(const ChainTraining old_one, StartTraining(world_, chain, Options()));
    REPRISE_ASSERT_OK_AND_ASSIGN(const ChainTraining new_one, StartTraining(world_, chain, Options()));
    Values before, got, want;
    for (int step = 0; step < 6; ++step) ASSERT_THAT(RunStep(old_one, step, before), IsOk());
    for (const ChainTraining* training : {&old_one, &new_one}) ASSERT_THAT(Reload(*training->parameters, 1), IsOk());
    for (int step = 6; step < 11; ++step) {
      ASSERT_THAT(RunStep(old_one, step, got), IsOk());
      ASSERT_THAT(RunStep(new_one, step, want), IsOk());
    }
    EXPECT_EQ(got, want) << Name(dtype);
  }
}

}  // namespace
}  // namespace reprise::testing
