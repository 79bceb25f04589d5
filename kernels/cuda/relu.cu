// The positive part, and its gradient.
#include "kernels/cuda/map.cuh"

namespace reprise::kernels {
namespace {

// Compared so that a NaN is kept.
struct PositivePart {
  __device__ float operator()(float x) const { return x <= 0.0f ? 0.0f : x; }
};
struct ReluGradient {
  __device__ float operator()(float dy, float x) const { return x <= 0.0f ? 0.0f : dy; }
};

}  // namespace

cudaError_t LaunchRelu(const LaunchPlace& place, const ActivationArguments& a) {
  return MapOne(place.stream, a.count, a.x, a.y, PositivePart());
}

cudaError_t LaunchReluBackward(const LaunchPlace& place, const ActivationBackwardArguments& a) {
  return MapTwo(place.stream, a.count, a.dy, a.x, a.dx, ReluGradient());
}

}  // namespace reprise::kernels
