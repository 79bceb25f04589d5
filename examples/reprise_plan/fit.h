// Does a plan fit in the memory of a device?
#ifndef REPRISE_EXAMPLES_REPRISE_PLAN_FIT_H_
#define REPRISE_EXAMPLES_REPRISE_PLAN_FIT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "reprise/core/plan.h"

namespace reprise {

// "141GB", "80 GiB", "1.5TiB", "1000000B": bytes. InvalidArgument for other text, a number without its unit among it,
// and for 2^62 bytes or more.
absl::StatusOr<int64_t> BytesFromText(absl::string_view text);

// The bytes that a plan needs of a rank's device.
int64_t DeviceBytes(const Plan& plan);

// Whether these fit in so many bytes and what is left or lacking, `note` (lines), and the largest buffers.
std::string FitTable(const Plan& plan, int64_t device_memory, absl::string_view note);

}  // namespace reprise

#endif  // REPRISE_EXAMPLES_REPRISE_PLAN_FIT_H_
