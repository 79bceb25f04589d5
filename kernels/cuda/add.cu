// Sums of two arrays, of which the second may repeat: bias, positions, residual.
#include "kernels/cuda/map.cuh"

namespace reprise::kernels {
namespace {

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

}  // namespace

cudaError_t LaunchAdd(cudaStream_t stream, int64_t count, Source a, Source b, int64_t b_count, Target y) {
  if (b_count == count) return MapTwo(stream, count, a, b, y, Sum());
  return WithElement(y.element, [&](auto type) {
    using T = decltype(type);
    return Map<Second::kRepeats, T, T>(stream, count, static_cast<const T*>(a.data), static_cast<const T*>(b.data),
                                       b_count, static_cast<T*>(y.data), y.add, Sum());
  });
}

}  // namespace reprise::kernels
