// Sums of two arrays, of which the second may repeat: bias, positions, residual.
#include "kernels/cuda/map.cuh"

namespace reprise::kernels {
namespace {

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

}  // namespace

cudaError_t LaunchAdd(const LaunchPlace& place, const AddArguments& a) {
  if (a.b_count == a.count) return MapTwo(place.stream, a.count, a.a, a.b, a.y, Sum());
  return WithElement(a.y.dtype, [&](auto type) {
    using T = decltype(type);
    return Map<Second::kRepeats, T, T>(place.stream, a.count, a.a.as<T>(), a.b.as<T>(), a.b_count, a.y.as<T>(),
                                       a.y.add(), Sum());
  });
}

}  // namespace reprise::kernels
