#include "kernels/checks.h"
#include "kernels/device_kernels.h"
#include "kernels/elementwise.h"
#include "kernels/host_math.h"
#include "reprise/core/status_macros.h"
#include "reprise/kernels/activations.h"

namespace reprise::kernels {

template <KernelElement T>
absl::Status GeluTanh(Stream stream, Input<T> x, TensorView<T> y) {
  REPRISE_RETURN_IF_ERROR(Checks("GeluTanh").Present("x", x).Present("y", y).Same("y", y, "x", x).Done());
  return Enqueue(
      stream, &DeviceKernels::GeluTanh, {x.num_elements(), InputOf(x), OutputOf(y)},
      [](const ActivationArguments& a) { MapElements(a.count, a.x.as<T>(), a.y.mode, a.y.as<T>(), Math().gelu); });
}

template <KernelElement T>
absl::Status GeluTanhBackward(Stream stream, Input<T> dy, Input<T> x, Gradient<T> dx) {
  REPRISE_RETURN_IF_ERROR(Checks("GeluTanhBackward")
                              .Present("dy", dy)
                              .Present("x", x)
                              .Same("dy", dy, "x", x)
                              .Wanted("dx", dx, "x", x)
                              .Done());
  if (!dx) return absl::OkStatus();
  return Enqueue(stream, &DeviceKernels::GeluTanhBackward, {x.num_elements(), InputOf(dy), InputOf(x), OutputOf(dx)},
                 [](const ActivationBackwardArguments& a) {
                   MapElements(a.count, a.dy.as<T>(), a.x.as<T>(), a.dx.mode, a.dx.as<T>(), Math().gelu_backward);
                 });
}

#define REPRISE_INSTANTIATE(T)                                     \
  template absl::Status GeluTanh(Stream, Input<T>, TensorView<T>); \
  template absl::Status GeluTanhBackward(Stream, Input<T>, Input<T>, Gradient<T>);
REPRISE_INSTANTIATE(float)
REPRISE_INSTANTIATE(BFloat16)
#undef REPRISE_INSTANTIATE

}  // namespace reprise::kernels
