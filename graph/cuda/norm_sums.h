// This rank's part of SumNorm.
#ifndef REPRISE_GRAPH_CUDA_NORM_SUMS_H_
#define REPRISE_GRAPH_CUDA_NORM_SUMS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "reprise/core/control_block.h"

namespace reprise::internal {

// sums[0] = the sum of the partials, in an order that follows from count; sums[1] = state->loss_sum. Device pointers.
cudaError_t LaunchNormSums(cudaStream_t stream, const double* partials, int64_t count, const StepState* state,
                           double* sums);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_NORM_SUMS_H_
