// The collectives of a schedule, each by its transport.
#ifndef REPRISE_GRAPH_CUDA_CUDA_COLLECTIVES_H_
#define REPRISE_GRAPH_CUDA_CUDA_COLLECTIVES_H_

#include "absl/status/status.h"
#include "graph/bindings.h"
#include "graph/cuda/cuda_rank.h"
#include "reprise/core/schedule.h"

namespace reprise::internal {

// After PrepareTransports. Enqueues an AllGather, ReduceScatter or SumNorm on its lane. Internal for any other command.
absl::Status LaunchCollective(CudaRank& rank, const Bindings& bindings, const ScheduledCommand& command);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_CUDA_COLLECTIVES_H_
