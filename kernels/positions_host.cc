#include "kernels/checks.h"
#include "kernels/device_kernels.h"
#include "kernels/elementwise.h"
#include "kernels/numeric.h"
#include "kernels/parallel.h"
#include "reprise/core/status_macros.h"
#include "reprise/kernels/embedding.h"

namespace reprise::kernels {
namespace {

// Rows of one sequence: the last dimension but one.
int64_t Time(absl::Span<const int64_t> shape) { return shape.size() < 2 ? 1 : shape[shape.size() - 2]; }

// Sums over sequences, for each position.
template <class T, class G>
void TableGradient(const ColumnSumArguments& a, int64_t width) {
  const int64_t context = width == 0 ? 0 : a.sums_count / width;
  ParallelForRanges(context, RowGrain(width * a.rows), [&](int64_t begin, int64_t end) {
    const std::unique_ptr<float[]> sum = Floats(width);
    for (int64_t i = begin * width; i < end * width; i += width) {
      std::fill_n(sum.get(), width, 0.0f);
      for (int64_t s = 0; s < a.rows && i < a.columns; ++s) {
        const T* row = a.x.as<T>() + s * a.columns + i;
        for (int64_t c = 0; c < width; ++c) sum[c] += static_cast<float>(row[c]);
      }
      Store(sum.get(), width, a.sums.mode, a.sums.as<G>() + i);
    }
  });
}

}  // namespace

template <KernelElement T>
absl::Status AddPositions(Stream stream, Input<T> x, Input<T> table, TensorView<T> y) {
  const int64_t width = Columns(x), time = Time(x.shape);
  REPRISE_RETURN_IF_ERROR(Checks("AddPositions")
                              .Present("x", x)
                              .Present("table", table)
                              .Present("y", y)
                              .Equal("columns of table", Columns(table), "columns of x", width)
                              .AtLeast("rows of table", Rows(table), time)
                              .Same("y", y, "x", x)
                              .Done());
  return Enqueue(stream, &DeviceKernels::Add, {x.num_elements(), InputOf(x), InputOf(table), time * width, OutputOf(y)},
                 AddRepeated<T>);
}

template <KernelElement T, GradientElement<T> G>
absl::Status AddPositionsBackward(Stream stream, Input<T> dy, Gradient<T> dx, Gradient<G> dtable) {
  const int64_t rows = Rows(dy), width = Columns(dy), time = Time(dy.shape);
  REPRISE_RETURN_IF_ERROR(Checks("AddPositionsBackward")
                              .Present("dy", dy)
                              .Wanted("dx", dx, "dy", dy)
                              .Equal("columns of dtable", dtable ? Columns(dtable) : width, "columns of dy", width)
                              .AtLeast("rows of dtable", dtable ? Rows(dtable) : time, time)
                              .Done());
  if (dx) REPRISE_RETURN_IF_ERROR(EnqueueCopy(stream, dy, dx));
  if (!dtable) return absl::OkStatus();
  // The rows of one sequence are one long row here.
  return Enqueue(stream, &DeviceKernels::ColumnSum,
                 {time == 0 ? 0 : rows / time, time * width, InputOf(dy), dtable.num_elements(), OutputOf(dtable)},
                 [width](const ColumnSumArguments& a) { TableGradient<T, G>(a, width); });
}

template absl::Status AddPositions(Stream, Input<float>, Input<float>, TensorView<float>);
template absl::Status AddPositions(Stream, Input<BFloat16>, Input<BFloat16>, TensorView<BFloat16>);
#define REPRISE_INSTANTIATE(T, G) \
  template absl::Status AddPositionsBackward(Stream, Input<T>, Gradient<T>, Gradient<G>);
REPRISE_FOR_ACTIVATION_AND_GRADIENT(REPRISE_INSTANTIATE)
#undef REPRISE_INSTANTIATE

}  // namespace reprise::kernels
