#include "kernels/checks.h"
#include "kernels/device_kernels.h"
#include "kernels/elementwise.h"
#include "reprise/core/status_macros.h"
#include "reprise/kernels/activations.h"

namespace reprise::kernels {
namespace {

// Compared so that a NaN is kept.
void PositivePart(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] <= 0.0f ? 0.0f : x[i];
}

void ReluGradient(const float* dy, const float* x, float* dx, int64_t count) {
  for (int64_t i = 0; i < count; ++i) dx[i] = x[i] <= 0.0f ? 0.0f : dy[i];
}

}  // namespace

template <KernelElement T>
absl::Status Relu(Stream stream, Input<T> x, TensorView<T> y) {
  REPRISE_RETURN_IF_ERROR(Checks("Relu").Present("x", x).Present("y", y).Same("y", y, "x", x).Done());
  return Enqueue(
      stream, &DeviceKernels::Relu, {x.num_elements(), InputOf(x), OutputOf(y)},
      [](const ActivationArguments& a) { MapElements(a.count, a.x.as<T>(), a.y.mode, a.y.as<T>(), PositivePart); });
}

template <KernelElement T>
absl::Status ReluBackward(Stream stream, Input<T> dy, Input<T> x, Gradient<T> dx) {
  REPRISE_RETURN_IF_ERROR(
      Checks("ReluBackward").Present("dy", dy).Present("x", x).Same("dy", dy, "x", x).Wanted("dx", dx, "x", x).Done());
  if (!dx) return absl::OkStatus();
  return Enqueue(stream, &DeviceKernels::ReluBackward, {x.num_elements(), InputOf(dy), InputOf(x), OutputOf(dx)},
                 [](const ActivationBackwardArguments& a) {
                   MapElements(a.count, a.dy.as<T>(), a.x.as<T>(), a.dx.mode, a.dx.as<T>(), ReluGradient);
                 });
}

#define REPRISE_INSTANTIATE(T)                                 \
  template absl::Status Relu(Stream, Input<T>, TensorView<T>); \
  template absl::Status ReluBackward(Stream, Input<T>, Input<T>, Gradient<T>);
REPRISE_INSTANTIATE(float)
REPRISE_INSTANTIATE(BFloat16)
#undef REPRISE_INSTANTIATE

}  // namespace reprise::kernels
