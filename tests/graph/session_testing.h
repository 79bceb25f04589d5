// Models with compute functions, and their oracles: plain loops on one rank, in double.
#ifndef REPRISE_TESTS_GRAPH_SESSION_TESTING_H_
#define REPRISE_TESTS_GRAPH_SESSION_TESTING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "reprise/core/compute.h"
#include "reprise/core/model.h"
#include "reprise/graph/sharded_parameters.h"
#include "reprise/graph/train_session.h"
#include "tests/graph/approximate.h"

namespace reprise::testing {

// loss = sum over i of w[i] * x[i]. With small whole numbers, every sum is exact in any order and dtype. Of kernels
// alone, so that it runs on devices too.
struct Dot {
  Model model;
  ComputeTable compute;
  ParameterId w;
  TensorId x, loss;
  CallId call;
};
struct DotOptions {
  int64_t size = 5;
  DType dtype = DType::kFloat32;  // of w, x and their product
  bool external = false;          // x
  bool keep_gradient = false;     // of x
  bool with_others = false;  // a frozen parameter "frozen" and an unused one "unused", both read by the call's unit
};
Dot MakeDot(const DotOptions& options = {});

// A dot product, its parameters, all of which start at 1, and a session on them.
struct DotTraining {
  Dot dot;
  std::shared_ptr<ShardedParameters> parameters;
  std::unique_ptr<TrainSession> session;
};
absl::StatusOr<DotTraining> StartTraining(std::shared_ptr<World> world, Dot dot, TrainOptions options);
// BeginStep, and every microbatch with x_of(microbatch, rank) in each element of x, exact in the dtype of x.
absl::Status RunMicrobatches(const DotTraining& training, const StepValues& values,
                             const std::function<float(int, int)>& x_of);

// A classifier: linear, bias and GELU per layer, then cross-entropy. Has every kind of use: odd shapes, two calls on
// one unit, calls without a unit, tied and frozen parameters, an empty one.
struct Network {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> widths;
  int64_t rows = 0;
  Model model;
  ComputeTable compute;
  TensorId features, labels, loss, logits;
  bool tied = false;  // the two middle layers share one weight
};
struct NetworkOptions {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> widths = {5, 7, 7, 7, 3};  // equal in the middle, so that weights can be tied
  int64_t rows = 6;
  bool tied = true;
};
Network MakeNetwork(const NetworkOptions& options = {});

// One microbatch of one rank, a function of the arguments.
struct Batch {
  std::vector<float> features;
  std::vector<int32_t> labels;
};
Batch MakeBatch(const Network& network, int64_t step, int microbatch, int rank);
// Stages it in the dtype of the network.
absl::Status CopyBatch(TrainSession& session, const Network& network, int rank, const Batch& batch);

// BeginStep, and every microbatch with MakeBatch.
absl::Status RunMicrobatches(TrainSession& session, const Network& network, const World& world, int64_t step,
                             const StepValues& values);
// Every parameter, in order.
absl::StatusOr<std::vector<std::vector<float>>> ReadAll(const ShardedParameters& parameters);

// The oracle. Gradients are sums over batches; `magnitude` bounds the terms of the sums.
struct OracleGradient {
  std::vector<std::vector<double>> gradients;  // by parameter; empty for frozen ones
  std::vector<double> magnitude;               // by parameter: the largest sum of absolute values of terms
  double loss = 0;                             // sum
};
OracleGradient Differentiate(const Network& network, const std::vector<std::vector<double>>& parameters,
                             const std::vector<Batch>& batches);

// Bound on the relative error of a gradient that `network` computes, to the magnitude: roundings along a path through
// all layers and back, and sums of products in fp32 as long as the widest layer or the batch.
double GradientError(const Network& network);

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_SESSION_TESTING_H_
