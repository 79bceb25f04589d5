// The sum of squares of an array, in double.
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/elements.cuh"

namespace reprise::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxRanges = kSquaredNormBytes / 8;

// Block b sums the packs of threads b * kThreads to (b + 1) * kThreads - 1 and of every gridDim.x-th block's after it.
template <bool kAligned>
__global__ void __launch_bounds__(kThreads) SumSquaresKernel(const float* values, int64_t count, double* sums) {
  constexpr int N = kPerVector<float>;
  const int64_t packs = (count + N - 1) / N, threads = static_cast<int64_t>(gridDim.x) * kThreads;
  double sum[N] = {};
#pragma unroll 4
  for (int64_t pack = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; pack < packs; pack += threads) {
    float x[N];
    if (kAligned && (pack + 1) * N <= count) {
      LoadFloats<N, true>(values, pack * N, count, x);
    } else {
      LoadFloats<N, false>(values, pack * N, count, x);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += static_cast<double>(x[i]) * x[i];
  }
  const double total = BlockSum((sum[0] + sum[1]) + (sum[2] + sum[3]));
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kThreads) AddRangesKernel(const double* sums, int ranges, double* result, bool add) {
  double sum = 0;
  for (int range = threadIdx.x; range < ranges; range += kThreads) sum += sums[range];
  sum = BlockSum(sum);
  if (threadIdx.x == 0) *result = add ? *result + sum : sum;
}

}  // namespace

cudaError_t LaunchSquaredNorm(cudaStream_t stream, const float* values, int64_t count, double* result, bool add,
                              double* workspace) {
  constexpr int64_t kRangeElements = kThreads * 4 * 8;
  const int64_t ranges = Smaller(CeilDivide(count, kRangeElements), kMaxRanges);
  const cudaError_t error = WithConstant(IsAligned<4>(values), [&](auto aligned) {
    return Launch(stream, Blocks(ranges), kThreads, 0, SumSquaresKernel<decltype(aligned)::value>, values, count,
                  workspace);
  });
  if (error != cudaSuccess) return error;
  return Launch(stream, 1, kThreads, 0, AddRangesKernel, workspace, static_cast<int>(ranges), result, add);
}

}  // namespace reprise::kernels
