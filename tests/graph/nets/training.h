// Nets in training on host ranks, and what that leaves to be compared.
#ifndef REPRISE_TESTS_GRAPH_NETS_TRAINING_H_
#define REPRISE_TESTS_GRAPH_NETS_TRAINING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/graph/train_session.h"
#include "tests/graph/nets/net.h"
#include "tests/graph/nets/setting.h"

namespace reprise::testing {

// What a step left; all by local rank or parameter where there are several.
struct NetStepTrace {
  std::vector<std::vector<float>> before, gradients, after;      // by parameter; gradients empty where not read
  std::vector<StepMetrics> metrics;                              // one unless discarded
  std::vector<std::vector<std::vector<float>>> outputs;          // of the last microbatch, by rank and value
  std::vector<std::vector<std::vector<float>>> input_gradients;  // the same
  struct Evaluation {
    std::vector<std::vector<float>> parameters;
    std::vector<float> losses;  // by rank
  };
  std::vector<Evaluation> evaluations;
  std::string non_finite;  // what FindNonFinite said, if asked
};
struct NetTrace {
  std::vector<std::vector<float>> initial;  // parameters as read at the start
  std::vector<NetStepTrace> steps;
  bool shared_arena = false;  // the forward session fitted

  // All numbers, as bytes.
  std::string Bytes() const;
};

// What is written at first (0) or later; exact in bfloat16.
std::vector<float> NetParameterValues(const Net& net, int parameter, int64_t write);
// Of the writes before a step and between its evaluations.
constexpr int64_t WriteBefore(int64_t step) { return 2 * step + 1; }
constexpr int64_t WriteBetween(int64_t step) { return 2 * step + 2; }
// Of an evaluation after step `step`.
NetBatch EvaluationBatch(const Net& net, int64_t step, int rank);

// Trains. The first error that the library gives.
absl::StatusOr<NetTrace> Train(const Net& net, const NetSetting& setting);

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_NETS_TRAINING_H_
