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
  if (!stream.is_host()) {
    return stream.device_kernels().Copy(count, {from_dtype, from}, {to_dtype, to, WriteMode::kAssign});
  }
  stream.host_queue().Enqueue([=] {
    WithFloatType(from_dtype, [&](auto from_type) {
      WithFloatType(to_dtype, [&](auto to_type) {
        CopyElements(count, static_cast<const decltype(from_type)*>(from), WriteMode::kAssign,
                     static_cast<decltype(to_type)*>(to));
      });
    });
  });
  return absl::OkStatus();
}

}  // namespace reprise::kernels
