// Finds what a compute function was to write and did not.
#ifndef REPRISE_GRAPH_HOST_CHECK_WRITES_H_
#define REPRISE_GRAPH_HOST_CHECK_WRITES_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "reprise/core/schedule.h"
#include "reprise/graph/bindings.h"

namespace reprise::internal {

// Runs `launch`, which executes the command at once on local rank `local`. For Forward and Backward, what they assign
// is filled with a pattern before; FailedPrecondition, with call, phase, name and count, if elements still hold it.
// Floats are filled with NaN; integers with an unlikely number, and bytes, which have none, count only if all of a
// tensor is left.
absl::Status CheckWrites(const Bindings& bindings, int local, const ScheduledCommand& command,
                         absl::FunctionRef<absl::Status()> launch);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_HOST_CHECK_WRITES_H_
