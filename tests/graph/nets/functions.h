// The compute functions of a net's calls.
#ifndef REPRISE_TESTS_GRAPH_NETS_FUNCTIONS_H_
#define REPRISE_TESTS_GRAPH_NETS_FUNCTIONS_H_

#include <vector>

#include "absl/status/status.h"
#include "reprise/core/compute.h"
#include "tests/graph/nets/net.h"

namespace reprise::testing {

// What a compute function names.
struct CallIds {
  NetCall call = {};
  std::vector<TensorId> in = {}, out = {}, saved_private = {};
  std::vector<DType> in_dtypes = {}, out_dtypes = {};
  std::vector<ParameterId> p = {};
  std::vector<DType> p_dtypes = {};
  TensorId integers = {};
  std::vector<ParameterId> idle = {};  // in the units it names, but not its own
};

// `dtype`: of the operands of kernels.
absl::Status RunForward(ComputeContext& c, const CallIds& ids, DType dtype);
absl::Status RunBackward(ComputeContext& c, const CallIds& ids, DType dtype);

// By hand.
absl::Status AffineForward(ComputeContext& c, const CallIds& ids);
absl::Status AffineBackward(ComputeContext& c, const CallIds& ids);
absl::Status ForkForward(ComputeContext& c, const CallIds& ids);
absl::Status ForkBackward(ComputeContext& c, const CallIds& ids);
absl::Status GateForward(ComputeContext& c, const CallIds& ids);
absl::Status GateBackward(ComputeContext& c, const CallIds& ids);
absl::Status SquaresForward(ComputeContext& c, const CallIds& ids);
absl::Status SquaresBackward(ComputeContext& c, const CallIds& ids);
absl::Status WeightedForward(ComputeContext& c, const CallIds& ids);
absl::Status WeightedBackward(ComputeContext& c, const CallIds& ids);
// The gradient of what a call does not use is 0.
absl::Status WriteIdleGradients(ComputeContext& c, const CallIds& ids);

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_NETS_FUNCTIONS_H_
