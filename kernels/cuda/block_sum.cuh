// Sums over the threads of a block, in an order that depends on their number alone.
#ifndef REPRISE_KERNELS_CUDA_BLOCK_SUM_CUH_
#define REPRISE_KERNELS_CUDA_BLOCK_SUM_CUH_

namespace reprise::kernels {

inline constexpr int kWarp = 32;
inline constexpr int kMaxWarps = 32;

// combine(a, b) of all lanes, in every lane.
template <class T, class Combine>
__device__ T WarpReduce(T value, const Combine& combine) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// The sum over the block, in every thread. blockDim.x is a multiple of 32. All threads call it.
template <class T>
__device__ T BlockSum(T value) {
  __shared__ T warps[kMaxWarps];
  const auto add = [](T a, T b) { return a + b; };
  value = WarpReduce(value, add);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, num_warps = blockDim.x / kWarp;
  __syncthreads();  // an earlier call's sums have been read
  if (lane == 0) warps[warp] = value;
  __syncthreads();
  return WarpReduce(lane < num_warps ? warps[lane] : T(0), add);
}

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_CUDA_BLOCK_SUM_CUH_
