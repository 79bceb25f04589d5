// GELU in its tanh form, as x s(x) with s(x) = (1 + tanh u) / 2 = 1 / (1 + exp(-2u)), u = kScale (x + kCubic x^3).
#include "kernels/cuda/map.cuh"

namespace reprise::kernels {
namespace {

constexpr float kScale = 0.797884561f;  // sqrt(2 / pi)
constexpr float kCubic = 0.044715f;

// Beyond 16, s is 0 or 1 to all digits; the bound keeps x^3 finite. Compared so that a NaN is kept.
__device__ float Bounded(float x) {
  const float low = x < -16.0f ? -16.0f : x;
  return low > 16.0f ? 16.0f : low;
}
// 1 / y for 1 <= y < 2^126, within one unit of the last place, which is enough: the exact quotient takes as long as all
// the rest, and __fdividef scales for a range that y does not have.
__device__ float Reciprocal(float y) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(y));
  return result;
}

// s(x) and 1 - s(x), neither by a difference, which would lose the digits of what is small.
struct Shares {
  float s, rest;
};
// The exponential is kept below 2^126, so that s is not 0: s(-infinity) times -infinity is no NaN.
__device__ Shares Sigmoid(float x) {
  const float u = -2.0f * kScale * x * (1.0f + kCubic * x * x);
  const float e = expf(u > 87.0f ? 87.0f : u);
  const float s = Reciprocal(1.0f + e);
  return {s, e * s};
}

struct Gelu {
  __device__ float operator()(float x) const { return x * Sigmoid(Bounded(x)).s; }
};
struct GeluGradient {
  __device__ float operator()(float dy, float x) const {
    const float b = Bounded(x);
    const auto [s, rest] = Sigmoid(b);
    return dy * (s + 2.0f * kScale * b * s * rest * (1.0f + 3.0f * kCubic * b * b));
  }
};

}  // namespace

cudaError_t LaunchGeluTanh(const LaunchPlace& place, const ActivationArguments& a) {
  return MapOne(place.stream, a.count, a.x, a.y, Gelu());
}

cudaError_t LaunchGeluTanhBackward(const LaunchPlace& place, const ActivationBackwardArguments& a) {
  return MapTwo(place.stream, a.count, a.dy, a.x, a.dx, GeluGradient());
}

}  // namespace reprise::kernels
