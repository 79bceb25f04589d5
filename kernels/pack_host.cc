#include "reprise/kernels/pack.h"

#include "kernels/checks.h"
#include "kernels/device_kernels.h"
#include "kernels/elementwise.h"
#include "reprise/core/status_macros.h"

namespace reprise::kernels {
namespace {

// A dense gradient is one long row.
PackArguments Flattened(PackArguments a) {
  if (a.row_stride == a.columns) {
    a.columns *= a.rows;
    a.rows = 1;
  }
  return a;
}

template <class G, class W>
void PackRows(const PackArguments& a) {
  const G* gradient = static_cast<const G*>(a.gradient);
  W* reduce_buffer = static_cast<W*>(a.reduce_buffer) + a.reduce_element;
  if (a.rows == 1) return CopyElements(a.columns, gradient, WriteMode::kAssign, reduce_buffer);
  ParallelForRanges(a.rows, RowGrain(a.columns), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      CopyElements(a.columns, gradient + r * a.row_stride, WriteMode::kAssign, reduce_buffer + r * a.columns);
    }
  });
}

}  // namespace

absl::Status Pack(Stream stream, const PackArguments& arguments) {
  const PackArguments& a = arguments;
  REPRISE_RETURN_IF_ERROR(Checks("Pack")
                              .AtLeast("rows", a.rows, 0)
                              .AtLeast("columns", a.columns, 0)
                              .AtLeast("row_stride", a.row_stride, a.rows > 1 ? a.columns : 0)
                              .AtLeast("reduce_element", a.reduce_element, 0)
                              .Address("gradient", a.gradient, a.rows * a.columns)
                              .Address("reduce_buffer", a.reduce_buffer, a.rows * a.columns)
                              .FloatingPoint("gradient_dtype", a.gradient_dtype)
                              .FloatingPoint("reduce_dtype", a.reduce_dtype)
                              .Done());
  return Enqueue(stream, &DeviceKernels::Pack, Flattened(arguments), [](const PackArguments& a) {
    WithFloatType(a.gradient_dtype, [&](auto gradient_type) {
      WithFloatType(a.reduce_dtype,
                    [&](auto reduce_type) { PackRows<decltype(gradient_type), decltype(reduce_type)>(a); });
    });
  });
}

}  // namespace reprise::kernels
