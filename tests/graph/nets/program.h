// What a net computes, as plain loops in double that carry a bound on the error of every value. Of the library it knows
// what headers say of kernels, and no code.
#ifndef REPRISE_TESTS_GRAPH_NETS_PROGRAM_H_
#define REPRISE_TESTS_GRAPH_NETS_PROGRAM_H_

#include <vector>

#include "absl/types/span.h"
#include "tests/graph/approximate.h"
#include "tests/graph/nets/net.h"

namespace reprise::testing {

using NetWeights = std::vector<std::vector<Approximate>>;  // by parameter

// Above it sums of squares may overflow in float32, and no bound holds: where one value of a batch is larger, the
// errors of all are infinite.
inline constexpr double kLargestBounded = 0x1p60;

// The values of one batch, by index into Net::values.
std::vector<std::vector<Approximate>> NetForward(const Net& net, const NetWeights& weights, const NetBatch& batch);

// Adds the gradients of one batch, times `loss_scale`, to `gradients`, which compute keeps in `gradient_dtypes`, each
// term and each sum stored in that dtype. Gives the gradients of values; empty for values that nothing reads.
std::vector<std::vector<Approximate>> NetBackward(const Net& net, const NetWeights& weights, const NetBatch& batch,
                                                  const std::vector<std::vector<Approximate>>& values,
                                                  double loss_scale, absl::Span<const DType> gradient_dtypes,
                                                  NetWeights& gradients);

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_NETS_PROGRAM_H_
