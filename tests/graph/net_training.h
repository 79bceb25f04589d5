// Nets in training on host ranks: random settings, and what a training with them leaves to be compared.
#ifndef REPRISE_TESTS_GRAPH_NET_TRAINING_H_
#define REPRISE_TESTS_GRAPH_NET_TRAINING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/graph/host_world.h"
#include "reprise/graph/train_session.h"
#include "tests/graph/random_net.h"
#include "tests/testing/random_model.h"

namespace reprise::testing {

struct NetStep {
  StepValues values = {};
  int discard_after = -1;       // DiscardGradients after that many microbatches instead of EndStep
  bool reads_gradients = true;  // before EndStep
  int evaluations = 0;          // after the step, by a forward session
  int writes_between = -1;      // a parameter to be written after the first evaluation
  int writes = -1;              // a parameter to be written before the step
  bool infinite = false;        // one element of one rank's inputs is infinite
  int session = 0;              // 1: the other training session on the same parameters makes it
};

struct NetSetting {
  HostWorldOptions world = {};
  TrainOptions train = {};
  PlanOptions other_plan = {};  // of the other session, if a step names it
  bool marks_changed = false;   // MarkParametersChanged before each step
  DType master = DType::kFloat32;
  bool shares_arena = false;  // by the forward session
  bool forward_session = false;
  RunOptions forward = {};
  std::vector<NetStep> steps;

  std::string ToString() const;
};
NetSetting RandomNetSetting(const Net& net, Random& random);
// Other settings that a training's bits do not depend on: the order of replay, slots, prefetch, residency, tail,
// microbatches per graph, execution, MarkParametersChanged, and which of the transports that exchange parts.
NetSetting WithTheSameBits(const Net& net, const NetSetting& setting, Random& random);

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

#endif  // REPRISE_TESTS_GRAPH_NET_TRAINING_H_
