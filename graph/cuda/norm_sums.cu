#include "graph/cuda/norm_sums.h"

#include "kernels/cuda/block_sum.cuh"

namespace reprise::internal {
namespace {

// Of several large units, each with up to kMaxNormRanges partials, one thread would read them one after another.
constexpr int kThreads = 1024;

__global__ void __launch_bounds__(kThreads)
    NormSums(const double* partials, int64_t count, const StepState* state, double* sums) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += partials[i];
  sum = kernels::BlockSum(sum);
  if (threadIdx.x != 0) return;
  sums[0] = sum;
  sums[1] = state->loss_sum;
}

}  // namespace

cudaError_t LaunchNormSums(cudaStream_t stream, const double* partials, int64_t count, const StepState* state,
                           double* sums) {
  NormSums<<<1, kThreads, 0, stream>>>(partials, count, state, sums);
  return cudaGetLastError();
}

}  // namespace reprise::internal
