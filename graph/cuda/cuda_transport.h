// What collectives need beside streams: communicators, and windows on the memory that they move.
#ifndef REPRISE_GRAPH_CUDA_CUDA_TRANSPORT_H_
#define REPRISE_GRAPH_CUDA_CUDA_TRANSPORT_H_

#include <memory>

#include "absl/status/status.h"
#include "graph/bindings.h"
#include "graph/cuda/cuda_rank.h"
#include "graph/machine.h"

namespace reprise::internal {

// (c) One communicator for each communicating lane; a vote after each, so that no rank is alone in the next.
absl::Status MakeCommunicators(Machine& world, CudaRank& rank);
absl::Status SplitCommunicators(Machine& world, CudaRank& rank, ncclComm_t parent);

// (c) A word by which a rank that gives up tells the others before its device does anything that they could take for
// results, see LaunchQueue::SetGaveUpWord. Ranks of several hosts have none, nor do those without shared memory.
absl::Status ShareGaveUpWord(Machine& world, CudaRank& rank);

// (c) Before windows are opened: FailedPrecondition on every rank, naming two, unless all have the same ones open.
absl::Status CheckWindows(Machine& world, const CudaRank& rank);

// (c) Why devices cannot use each other's memory in windows of NCCL's, see TransportTraits::windows: the same text on
// every rank; empty if they can. Opens the flags for copies.
absl::StatusOr<std::string> WhyNoWindows(Machine& world, CudaRank& rank);

// (c) Before a plan is recorded: what its transports need, where it was not made before, see DeviceTransport::Prepare.
// Unavailable, on every rank, if a rank cannot have a transport.
absl::Status PrepareTransports(Machine& world, const std::shared_ptr<CudaRank>& rank, const Bindings& bindings);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_CUDA_TRANSPORT_H_
