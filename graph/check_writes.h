// Finds what a compute function was to write and did not.
#ifndef REPRISE_GRAPH_CHECK_WRITES_H_
#define REPRISE_GRAPH_CHECK_WRITES_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "reprise/core/schedule.h"
#include "reprise/graph/bindings.h"

namespace reprise::internal {

// How to reach memory of the rank whose writes are checked, in order with what `launch` enqueues.
struct WriteProbe {
  absl::FunctionRef<absl::Status(void* to, uint8_t value, int64_t num_bytes)> fill;
  absl::FunctionRef<absl::Status(void* to_host, const void* from, int64_t num_bytes)> read;
};

// Runs `launch`, which executes the command on local rank `local`. For Forward and Backward, what they assign is filled
// with a pattern before; FailedPrecondition, with call, phase, name and count, if elements still hold it. Floats are
// filled with NaN; integers with an unlikely number, and bytes, which have none, count only if all of a tensor is left.
// FailedPrecondition, too, if Bindings::scratch_guard bytes after the scratch memory do not keep the pattern put there.
absl::Status CheckWrites(const Bindings& bindings, int local, const ScheduledCommand& command, const WriteProbe& probe,
                         absl::FunctionRef<absl::Status()> launch);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CHECK_WRITES_H_
