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
  if (!stream.is_host()) {
    return stream.device_kernels().Add(x.num_elements(), InputOf(x), InputOf(bias), Columns(x), OutputOf(y));
  }
  stream.host_queue().Enqueue([rows = Rows(x), columns = Columns(x), x = x.data, bias = bias.data, y = y.data] {
    ParallelForRanges(rows, RowGrain(columns), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          y[r * columns + c] = static_cast<T>(static_cast<float>(x[r * columns + c]) + static_cast<float>(bias[c]));
        }
      }
    });
  });
  return absl::OkStatus();
}

template <KernelElement T, GradientElement<T> G>
absl::Status AddBiasBackward(Stream stream, Input<T> dy, Gradient<T> dx, Gradient<G> dbias) {
  REPRISE_RETURN_IF_ERROR(
      Checks("AddBiasBackward")
          .Present("dy", dy)
          .Wanted("dx", dx, "dy", dy)
          .Equal("elements of dbias", dbias ? NumElements(dbias.shape) : Columns(dy), "columns of dy", Columns(dy))
          .Done());
  if (!stream.is_host()) {
    DeviceKernels& device = stream.device_kernels();
    if (dx) REPRISE_RETURN_IF_ERROR(device.Copy(dy.num_elements(), InputOf(dy), OutputOf(dx)));
    if (!dbias) return absl::OkStatus();
    return device.ColumnSum(Rows(dy), Columns(dy), InputOf(dy), Columns(dy), OutputOf(dbias));
  }
  stream.host_queue().Enqueue([rows = Rows(dy), columns = Columns(dy), dy = dy.data, dx_mode = dx.mode, dx = dx.data,
                               dbias_mode = dbias.mode, dbias = dbias.data] {
    if (dx != nullptr) CopyElements(rows * columns, dy, dx_mode, dx);
    if (dbias == nullptr) return;
    ColumnSum(rows, columns, dbias_mode, dbias, [&](int64_t row, float* sums) {
      for (int64_t c = 0; c < columns; ++c) sums[c] += static_cast<float>(dy[row * columns + c]);
    });
  });
  return absl::OkStatus();
}

template absl::Status AddBias(Stream, Input<float>, Input<float>, TensorView<float>);
template absl::Status AddBias(Stream, Input<BFloat16>, Input<BFloat16>, TensorView<BFloat16>);
#define REPRISE_INSTANTIATE(T, G) template absl::Status AddBiasBackward(Stream, Input<T>, Gradient<T>, Gradient<G>);
REPRISE_FOR_ACTIVATION_AND_GRADIENT(REPRISE_INSTANTIATE)
#undef REPRISE_INSTANTIATE

}  // namespace reprise::kernels
