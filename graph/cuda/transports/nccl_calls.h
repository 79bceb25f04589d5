// Collectives by NCCL, each one operation whatever the number of parts. Which kernels NCCL takes depends on whether the
// memory lies in windows.
#ifndef REPRISE_GRAPH_CUDA_TRANSPORTS_NCCL_CALLS_H_
#define REPRISE_GRAPH_CUDA_TRANSPORTS_NCCL_CALLS_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "graph/cuda/transports/transport.h"

namespace reprise::internal {

// See DeviceTransport::Gather, and Exchange with Sum::kRankOrder and kNccl.
absl::Status NcclGather(const CollectiveLane& lane, absl::Span<const Parts> parts);
absl::Status NcclSendAndReceive(const CollectiveLane& lane, absl::Span<const Parts> parts);
absl::Status NcclReduceScatter(const CollectiveLane& lane, absl::Span<const Parts> parts);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_TRANSPORTS_NCCL_CALLS_H_
