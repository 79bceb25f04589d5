// Device memory of one rank.
#ifndef REPRISE_GRAPH_CUDA_CUDA_MEMORY_H_
#define REPRISE_GRAPH_CUDA_CUDA_MEMORY_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "graph/cuda/cuda_rank.h"
#include "reprise/graph/world.h"

namespace reprise::internal {

// ResourceExhausted, with the bytes asked for and those free.
absl::StatusOr<std::shared_ptr<MemoryBlock>> AllocateCudaMemory(std::shared_ptr<CudaRank> rank, MemoryKind kind,
                                                                int64_t num_bytes);

// (c) Opens communicating memory to the other ranks' devices, once for each communicator; nothing for other memory. The
// block is one that AllocateCudaMemory made.
absl::Status RegisterWindow(const std::shared_ptr<MemoryBlock>& block, ncclComm_t communicator);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_CUDA_MEMORY_H_
