// Stochastic gradient descent.
#include "kernels/cuda/optimizer.cuh"

namespace reprise::kernels {
namespace {

template <int N, class M>
__device__ void UpdatePack(const SgdArguments& a, const StepFactors& step, M* masters, int64_t first) {
  const Pack<float, N> sums = LoadPack<N>(a.update.gradient_sum + first);
  Pack<M, N> master = LoadPack<N>(masters + first);
  Pack<float, N> velocity = {};
  if (a.momentum != 0) velocity = LoadPack<N>(a.velocity + first);
#pragma unroll
  for (int e = 0; e < N; ++e) {
    const float old = ToFloat(master.elements[e]);
    float direction = step.Gradient(sums.elements[e]) + a.weight_decay * old;
    if (a.momentum != 0) direction = velocity.elements[e] = a.momentum * velocity.elements[e] + direction;
    master.elements[e] = FromFloat<M>(old - step.learning_rate * direction);
  }
  if (a.momentum != 0) StorePack(a.velocity + first, velocity);
  StorePack(masters + first, master);
}

template <int N, class M>
__global__ void __launch_bounds__(kUpdateThreads) SgdKernel(SgdArguments a) {
  if (a.update.step_state->skip != SkipReason::kNone) return;
  const StepFactors step = ReadStepFactors(a.update);
  M* masters = static_cast<M*>(a.update.master);
  ForEachPack<N>(a.update.count,
                 [&](auto pack, int64_t first) { UpdatePack<sizeof(pack) / sizeof(float)>(a, step, masters, first); });
}

}  // namespace

cudaError_t LaunchSgd(const LaunchPlace& place, const SgdArguments& a) {
  return WithElement(a.update.master_dtype, [&](auto type) {
    using M = decltype(type);
    constexpr int N = 4;
    const bool aligned = IsAligned<N>(a.update.gradient_sum) && IsAligned<N>(static_cast<M*>(a.update.master)) &&
                         (a.momentum == 0 || IsAligned<N>(a.velocity));
    return aligned ? Launch(place.stream, UpdateBlocks(a.update.count, N), kUpdateThreads, 0, SgdKernel<N, M>, a)
                   : Launch(place.stream, UpdateBlocks(a.update.count, 1), kUpdateThreads, 0, SgdKernel<1, M>, a);
  });
}

}  // namespace reprise::kernels
