// Measures which transport suits units of which size.
#ifndef REPRISE_GRAPH_CUDA_TRANSPORT_TRIAL_H_
#define REPRISE_GRAPH_CUDA_TRANSPORT_TRIAL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "graph/cuda/cuda_rank.h"
#include "graph/machine.h"
#include "reprise/core/plan.h"

namespace reprise::internal {

// Milliseconds of one microbatch, by the bytes of each of its units.
using TransportTimes = std::map<int64_t, std::map<Transport, double>>;

// (c) Replays stacks of four linear layers, forward and backward, whose units have 128 KiB to 128 MiB of bf16 weights,
// by each transport in turns: gathers, products, reductions and sums together, since what a transport costs is also
// what it takes from the products beside it. Nothing if a rank has too little memory for all sizes. `progress` is
// told of each size. `rank` is the rank of the world.
absl::StatusOr<TransportTimes> TryTransports(const std::shared_ptr<Machine>& world, const CudaRank& rank,
                                             absl::FunctionRef<void(absl::string_view line)> progress);

// From small units to large ones: the default, and from the geometric mean of two sizes on the quickest of the larger
// one where that is clearly quicker than what came before.
std::vector<TransportChoice> ChooseTransports(const TransportTimes& times);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_TRANSPORT_TRIAL_H_
