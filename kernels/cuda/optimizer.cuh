// What the optimizers compute alike. Compiled without fused multiply-add, so that updates equal the host's bit for bit.
#ifndef REPRISE_KERNELS_CUDA_OPTIMIZER_CUH_
#define REPRISE_KERNELS_CUDA_OPTIMIZER_CUH_

#include <cfloat>

#include "kernels/cuda/elements.cuh"

namespace reprise::kernels {

inline constexpr int kUpdateThreads = 256;
// Blocks stay and stride: each reads the step's values once.
inline constexpr int64_t kUpdateBlocks = 2048;

// This step's values, read at replay.
struct StepFactors {
  float learning_rate, divisor;
  double clip;  // times the sum gives the clipped gradient; 0: no clipping

  // Of an element of the sum. A norm that is far above clip_norm leaves the range of floats as its reciprocal does.
  __device__ float Gradient(float sum) const {
    return clip == 0 ? sum / divisor : static_cast<float>(static_cast<double>(sum) * clip);
  }
};

__device__ inline StepFactors ReadStepFactors(const UpdateArguments& u) {
  StepFactors factors = {u.control->learning_rate, u.control->gradient_divisor * u.control->loss_scale, 0};
  const double norm = sqrt(u.step_state->norm_squared);
  if (u.clip_norm > 0 && norm / factors.divisor > u.clip_norm) factors.clip = u.clip_norm / norm;
  return factors;
}

// Packs of N elements: update(N, first element) for each pack, then update(1, element) for those past the last pack.
template <int N, class Update>
__device__ void ForEachPack(int64_t count, const Update& update) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kUpdateThreads;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kUpdateThreads + threadIdx.x;
  const int64_t packs = count / N;
  for (int64_t i = thread; i < packs; i += threads) update(Pack<float, N>(), i * N);
  for (int64_t i = packs * N + thread; i < count; i += threads) update(Pack<float, 1>(), i);
}

inline dim3 UpdateBlocks(int64_t count, int per_pack) {
  const int64_t blocks = CeilDivide(count, int64_t{kUpdateThreads} * per_pack);
  return dim3(static_cast<unsigned>(Smaller(blocks, kUpdateBlocks)));
}

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_CUDA_OPTIMIZER_CUH_
