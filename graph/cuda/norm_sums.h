// This rank's part of SumNorm.
#ifndef REPRISE_GRAPH_CUDA_NORM_SUMS_H_
#define REPRISE_GRAPH_CUDA_NORM_SUMS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "reprise/core/control_block.h"

namespace reprise::internal {

// Fills in `part`: the sum of the partials, in an order that follows from count, and what control and state hold.
// Device pointers.
cudaError_t LaunchNormPart(cudaStream_t stream, const double* partials, int64_t count, const ControlBlock* control,
                           const StepState* state, NormPart* part);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_NORM_SUMS_H_
