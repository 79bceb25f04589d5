// The AdamW optimizer.
#include "kernels/cuda/optimizer.cuh"

namespace reprise::kernels {
namespace {

// The largest float whose square is one.
constexpr float kLargestGradient = 0x1.fffffep63f;

struct Factors {
  StepFactors step;
  // Of the bias of the first moment and of the second one's root, to multiply with: the second moment itself, times its
  // own, may leave the range of floats.
  float correction1, correction2;
  float keep;
};

__device__ Factors ReadFactors(const AdamWArguments& a) {
  const StepFactors step = ReadStepFactors(a.update);
  const double t = static_cast<double>(a.update.step_state->optimizer_steps);
  return {step, static_cast<float>(1.0 / (1.0 - pow(static_cast<double>(a.beta1), t))),
          static_cast<float>(sqrt(1.0 / (1.0 - pow(static_cast<double>(a.beta2), t)))),
          1.0f - step.learning_rate * a.weight_decay};
}

template <int N, class M>
__device__ void UpdatePack(const AdamWArguments& a, const Factors& f, M* masters, int64_t first) {
  const Pack<float, N> sums = LoadPack<N>(a.update.gradient_sum + first);
  Pack<float, N> m = LoadPack<N>(a.first_moment + first), v = LoadPack<N>(a.second_moment + first);
  Pack<M, N> master = LoadPack<N>(masters + first);
#pragma unroll
  for (int e = 0; e < N; ++e) {
    const float unbounded = f.step.Gradient(sums.elements[e]);
    const float below = unbounded > kLargestGradient ? kLargestGradient : unbounded;
    const float gradient = below < -kLargestGradient ? -kLargestGradient : below;
    m.elements[e] = a.beta1 * m.elements[e] + (1.0f - a.beta1) * gradient;
    const float square = a.beta2 * v.elements[e] + (1.0f - a.beta2) * gradient * gradient;
    v.elements[e] = square > FLT_MAX ? FLT_MAX : square;
    const float direction = m.elements[e] * f.correction1 / (sqrtf(v.elements[e]) * f.correction2 + a.epsilon);
    master.elements[e] = FromFloat<M>(ToFloat(master.elements[e]) * f.keep - f.step.learning_rate * direction);
  }
  StorePack(a.first_moment + first, m);
  StorePack(a.second_moment + first, v);
  StorePack(masters + first, master);
}

template <int N, class M>
__global__ void __launch_bounds__(kUpdateThreads) AdamWKernel(AdamWArguments a) {
  __shared__ Factors shared;
  if (a.update.step_state->skip != SkipReason::kNone) return;
  // The powers take as long as many elements.
  if (threadIdx.x == 0) shared = ReadFactors(a);
  __syncthreads();
  const Factors factors = shared;
  M* masters = static_cast<M*>(a.update.master);
  ForEachPack<N>(a.update.count, [&](auto pack, int64_t first) {
    UpdatePack<sizeof(pack) / sizeof(float)>(a, factors, masters, first);
  });
}

}  // namespace

cudaError_t LaunchAdamW(const LaunchPlace& place, const AdamWArguments& a) {
  return WithElement(a.update.master_dtype, [&](auto type) {
    using M = decltype(type);
    constexpr int N = 4;
    const bool aligned = IsAligned<N>(a.update.gradient_sum) && IsAligned<N>(static_cast<M*>(a.update.master)) &&
                         IsAligned<N>(a.first_moment) && IsAligned<N>(a.second_moment);
    return aligned ? Launch(place.stream, UpdateBlocks(a.update.count, N), kUpdateThreads, 0, AdamWKernel<N, M>, a)
                   : Launch(place.stream, UpdateBlocks(a.update.count, 1), kUpdateThreads, 0, AdamWKernel<1, M>, a);
  });
}

}  // namespace reprise::kernels
