#include "reprise/kernels/cast.h"

#include "kernels/checks.h"
#include "kernels/device_kernels.h"
#include "kernels/elementwise.h"
#include "reprise/core/status_macros.h"

namespace reprise::kernels {

absl::Status Cast(Stream stream, DType from_dtype, const void* from, DType to_dtype, void* to, int64_t count) {
  REPRISE_RETURN_IF_ERROR(Checks("Cast")
                              .AtLeast("count", count, 0)
                              .Address("from", from, count)
                              .Address("to", to, count)
                              .FloatingPoint("from_dtype", from_dtype)
                              .FloatingPoint("to_dtype", to_dtype)
                              .Done());
  return Enqueue(stream, &DeviceKernels::Copy, {count, {from_dtype, from}, {to_dtype, to}}, [](const CopyArguments& a) {
    WithFloatType(a.from.dtype, [&](auto from_type) {
      WithFloatType(a.to.dtype, [&](auto to_type) {
        CopyElements(a.count, a.from.as<decltype(from_type)>(), a.to.mode, a.to.as<decltype(to_type)>());
      });
    });
  });
}

}  // namespace reprise::kernels
