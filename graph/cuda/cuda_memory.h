// Device memory of one rank.
#ifndef REPRISE_GRAPH_CUDA_CUDA_MEMORY_H_
#define REPRISE_GRAPH_CUDA_CUDA_MEMORY_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "graph/cuda/cuda_rank.h"
#include "graph/machine.h"

namespace reprise::internal {

// ResourceExhausted, with the bytes asked for and those free.
absl::StatusOr<std::shared_ptr<MemoryBlock>> AllocateCudaMemory(std::shared_ptr<CudaRank> rank, MemoryKind kind,
                                                                int64_t num_bytes);

// (c) Opens communicating memory to the other ranks' devices, once for each lane's communicator; nothing for other
// memory. The block is one that AllocateCudaMemory made.
absl::Status RegisterWindow(const std::shared_ptr<MemoryBlock>& block, Lane lane);
// Was that done, for whichever communicator?
bool HasWindow(const MemoryBlock& block);
// For copies to the other ranks' memory, after RegisterWindow for the all-gather lane and
// Communicators::TakePeerFlags: finds out where this rank's device sees it.
absl::Status FindPeers(MemoryBlock& block);
// Where this rank's device sees what lies at `mine` in this block on another rank. Null if it is not in this block, or
// that is not open.
std::byte* PeerAddress(const MemoryBlock& block, const void* mine, int peer);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_CUDA_MEMORY_H_
