// Records schedules for one rank on a device: as a CUDA graph, or to be enqueued anew at every replay.
#ifndef REPRISE_GRAPH_CUDA_CUDA_RECORDER_H_
#define REPRISE_GRAPH_CUDA_CUDA_RECORDER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "graph/cuda/cuda_rank.h"
#include "graph/recorder.h"

namespace reprise::internal {

// Unavailable for a transport that the world does not have.
absl::StatusOr<std::unique_ptr<Recorder>> NewCudaRecorder(Execution execution, std::shared_ptr<const Bindings> bindings,
                                                          std::shared_ptr<CudaRank> rank);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_CUDA_RECORDER_H_
