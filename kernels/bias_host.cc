#include "reprise/kernels/bias.h"

#include "kernels/checks.h"
#include "kernels/column_sum.h"
#include "kernels/device_kernels.h"
#include "kernels/elementwise.h"
#include "reprise/core/status_macros.h"

namespace reprise::kernels {

template <KernelElement T>
absl::Status AddBias(Stream stream, Input<T> x, Input<T> bias, TensorView<T> y) {
  REPRISE_RETURN_IF_ERROR(Checks("AddBias")
                              .Present("x", x)
                              .Present("bias", bias)
                              .Present("y", y)
                              .Equal("elements of bias", NumElements(bias.shape), "columns of x", Columns(x))
                              .Same("y", y, "x", x)
                              .Done());
  return Enqueue(stream, &DeviceKernels::Add, {x.num_elements(), InputOf(x), InputOf(bias), Columns(x), OutputOf(y)},
                 AddRepeated<T>);
}

template <KernelElement T, GradientElement<T> G>
absl::Status AddBiasBackward(Stream stream, Input<T> dy, Gradient<T> dx, Gradient<G> dbias) {
  REPRISE_RETURN_IF_ERROR(
      Checks("AddBiasBackward")
          .Present("dy", dy)
          .Wanted("dx", dx, "dy", dy)
          .Equal("elements of dbias", dbias ? NumElements(dbias.shape) : Columns(dy), "columns of dy", Columns(dy))
          .Done());
  if (dx) REPRISE_RETURN_IF_ERROR(EnqueueCopy(stream, dy, dx));
  if (!dbias) return absl::OkStatus();
  return Enqueue(stream, &DeviceKernels::ColumnSum, {Rows(dy), Columns(dy), InputOf(dy), Columns(dy), OutputOf(dbias)},
                 [](const ColumnSumArguments& a) {
                   ColumnSum(a.rows, a.columns, a.sums.mode, a.sums.as<G>(), [&](int64_t row, float* sums) {
                     const T* values = a.x.as<T>() + row * a.columns;
                     for (int64_t c = 0; c < a.columns; ++c) sums[c] += static_cast<float>(values[c]);
                   });
                 });
}

template absl::Status AddBias(Stream, Input<float>, Input<float>, TensorView<float>);
template absl::Status AddBias(Stream, Input<BFloat16>, Input<BFloat16>, TensorView<BFloat16>);
#define REPRISE_INSTANTIATE(T, G) template absl::Status AddBiasBackward(Stream, Input<T>, Gradient<T>, Gradient<G>);
REPRISE_FOR_ACTIVATION_AND_GRADIENT(REPRISE_INSTANTIATE)
#undef REPRISE_INSTANTIATE

}  // namespace reprise::kernels
