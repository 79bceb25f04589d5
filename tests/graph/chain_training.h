// Chains in training on any world, checked step by step against their oracle.
#ifndef REPRISE_TESTS_GRAPH_CHAIN_TRAINING_H_
#define REPRISE_TESTS_GRAPH_CHAIN_TRAINING_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/graph/chain_oracle.h"

namespace reprise::testing {

struct ChainTraining {
  Chain chain;
  std::shared_ptr<ShardedParameters> parameters;
  std::unique_ptr<TrainSession> session;
};
// Parameters are normally distributed, the same at every start of a chain.
absl::StatusOr<ChainTraining> StartTraining(std::shared_ptr<World> world, Chain chain, TrainOptions options,
                                            DType master = DType::kFloat32);

// BeginStep, and every microbatch with MakeBatch.
absl::Status RunMicrobatches(const ChainTraining& training, int64_t step, const StepValues& values);

// What a step found and left, by parameter. Frozen ones have gradients of 0.
struct ChainStep {
  std::vector<std::vector<float>> before, gradients, after;
  StepMetrics metrics;
};
// A whole step. Fails the test unless its loss and its gradients are the oracle's, and its norm the gradients', for the
// masters that training has at that moment, so that errors do not add up over steps. To be called in
// ASSERT_NO_FATAL_FAILURE.
void RunCheckedStep(const ChainTraining& training, int64_t step, const StepValues& values, ChainStep& done);
// after = before - learning rate * gradient, which rounds twice; a parameter without a gradient keeps its bits.
void ExpectSgdUpdate(const ChainStep& step, float learning_rate);

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_CHAIN_TRAINING_H_
