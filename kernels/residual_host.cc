#include "reprise/kernels/residual.h"

#include "kernels/checks.h"
#include "kernels/device_kernels.h"
#include "kernels/elementwise.h"
#include "reprise/core/status_macros.h"

namespace reprise::kernels {

template <KernelElement T>
absl::Status Add(Stream stream, Input<T> a, Input<T> b, TensorView<T> y) {
  REPRISE_RETURN_IF_ERROR(
      Checks("Add").Present("a", a).Present("b", b).Present("y", y).Same("b", b, "a", a).Same("y", y, "a", a).Done());
  const int64_t count = a.num_elements();
  return Enqueue(stream, &DeviceKernels::Add, {count, InputOf(a), InputOf(b), count, OutputOf(y)},
                 [](const AddArguments& s) {
                   MapElements(s.count, s.a.as<T>(), s.b.as<T>(), s.y.mode, s.y.as<T>(),
                               [](const float* a, const float* b, float* y, int64_t n) {
                                 for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
                               });
                 });
}

template <KernelElement T>
absl::Status AddBackward(Stream stream, Input<T> dy, Gradient<T> da, Gradient<T> db) {
  REPRISE_RETURN_IF_ERROR(
      Checks("AddBackward").Present("dy", dy).Wanted("da", da, "dy", dy).Wanted("db", db, "dy", dy).Done());
  for (const Gradient<T>& gradient : {da, db}) {
    if (!gradient) continue;
    REPRISE_RETURN_IF_ERROR(EnqueueCopy(stream, dy, gradient));
  }
  return absl::OkStatus();
}

#define REPRISE_INSTANTIATE(T)                                          \
  template absl::Status Add(Stream, Input<T>, Input<T>, TensorView<T>); \
  template absl::Status AddBackward(Stream, Input<T>, Gradient<T>, Gradient<T>);
REPRISE_INSTANTIATE(float)
REPRISE_INSTANTIATE(BFloat16)
#undef REPRISE_INSTANTIATE

}  // namespace reprise::kernels
