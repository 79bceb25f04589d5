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
void TableGradient(int64_t sequences, int64_t time, int64_t context, int64_t width, const T* dy, WriteMode mode,
                   G* dtable) {
  ParallelForRanges(context, RowGrain(width * sequences), [&](int64_t begin, int64_t end) {
    const std::unique_ptr<float[]> sum = Floats(width);
    for (int64_t t = begin; t < end; ++t) {
      std::fill_n(sum.get(), width, 0.0f);
      for (int64_t s = 0; s < sequences && t < time; ++s) {
        const T* row = dy + (s * time + t) * width;
        for (int64_t c = 0; c < width; ++c) sum[c] += static_cast<float>(row[c]);
      }
      Store(sum.get(), width, mode, dtable + t * width);
    }
  });
}

}  // namespace

template <KernelElement T>
absl::Status AddPositions(Stream stream, Input<T> x, Input<T> table, TensorView<T> y) {
  const int64_t rows = Rows(x), width = Columns(x), time = Time(x.shape);
  REPRISE_RETURN_IF_ERROR(Checks("AddPositions")
                              .Present("x", x)
                              .Present("table", table)
                              .Present("y", y)
                              .Equal("columns of table", Columns(table), "columns of x", width)
                              .AtLeast("rows of table", Rows(table), time)
                              .Same("y", y, "x", x)
                              .Done());
  if (!stream.is_host()) {
    return stream.device_kernels().Add(x.num_elements(), InputOf(x), InputOf(table), time * width, OutputOf(y));
  }
  stream.host_queue().Enqueue([=, x = x.data, table = table.data, y = y.data] {
    ParallelForRanges(rows, RowGrain(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T *in = x + r * width, *position = table + r % time * width;
        for (int64_t c = 0; c < width; ++c) {
          y[r * width + c] = static_cast<T>(static_cast<float>(in[c]) + static_cast<float>(position[c]));
        }
      }
    });
  });
  return absl::OkStatus();
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
  if (!stream.is_host()) {
    DeviceKernels& device = stream.device_kernels();
    if (dx) REPRISE_RETURN_IF_ERROR(device.Copy(dy.num_elements(), InputOf(dy), OutputOf(dx)));
    if (!dtable) return absl::OkStatus();
    // The rows of one sequence are one long row here.
    return device.ColumnSum(time == 0 ? 0 : rows / time, time * width, InputOf(dy), dtable.num_elements(),
                            OutputOf(dtable));
  }
  stream.host_queue().Enqueue([=, context = Rows(dtable), dy = dy.data, dx_mode = dx.mode, dx = dx.data,
                               dtable_mode = dtable.mode, dtable = dtable.data] {
    if (dx != nullptr) CopyElements(rows * width, dy, dx_mode, dx);
    if (dtable == nullptr) return;
    TableGradient(time == 0 ? 0 : rows / time, time, context, width, dy, dtable_mode, dtable);
  });
  return absl::OkStatus();
}

template absl::Status AddPositions(Stream, Input<float>, Input<float>, TensorView<float>);
template absl::Status AddPositions(Stream, Input<BFloat16>, Input<BFloat16>, TensorView<BFloat16>);
#define REPRISE_INSTANTIATE(T, G) \
  template absl::Status AddPositionsBackward(Stream, Input<T>, Gradient<T>, Gradient<G>);
REPRISE_FOR_ACTIVATION_AND_GRADIENT(REPRISE_INSTANTIATE)
#undef REPRISE_INSTANTIATE

}  // namespace reprise::kernels
