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

cudaError_t LaunchRelu(cudaStream_t stream, int64_t count, Source x, Target y) {
  return MapOne(stream, count, x, y, PositivePart());
}

cudaError_t LaunchReluBackward(cudaStream_t stream, int64_t count, Source dy, Source x, Target dx) {
  return MapTwo(stream, count, dy, x, dx, ReluGradient());
}

}  // namespace reprise::kernels
