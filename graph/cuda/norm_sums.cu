#include "graph/cuda/norm_sums.h"

#include "kernels/cuda/block_sum.cuh"

namespace reprise::internal {
namespace {

// Of several large units, each with up to kMaxNormRanges partials, one thread would read them one after another.
constexpr int kThreads = 1024;

__global__ void __launch_bounds__(kThreads)
    FillNormPart(const double* partials, int64_t count, const ControlBlock* control, const StepState* state,
                 NormPart* part) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += partials[i];
  sum = kernels::BlockSum(sum);
  if (threadIdx.x != 0) return;
  *part = {.norm_squared = sum, .loss_sum = state->loss_sum, .agreed = control->agreed};
}

}  // namespace

cudaError_t LaunchNormPart(cudaStream_t stream, const double* partials, int64_t count, const ControlBlock* control,
                           const StepState* state, NormPart* part) {
  FillNormPart<<<1, kThreads, 0, stream>>>(partials, count, control, state, part);
  return cudaGetLastError();
}

}  // namespace reprise::internal
