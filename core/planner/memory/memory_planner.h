// Places every buffer of a plan: fills Buffer::offset and Plan::memory.
#ifndef REPRISE_CORE_PLANNER_MEMORY_MEMORY_PLANNER_H_
#define REPRISE_CORE_PLANNER_MEMORY_MEMORY_PLANNER_H_

#include "absl/status/status.h"
#include "reprise/core/plan.h"

namespace reprise::internal {

// Persistent storages are laid out one buffer after the other, in id order. In the transient arenas two buffers share
// bytes only where all uses of one are ordered before all uses of the other by the schedules' lanes and waits; a
// buffer that a schedule starts or ends with (a resident, an outstanding reduction) is live there from its Begin or
// to its End, and has one offset for all schedules. ResourceExhausted if the buffers add up to more than an int64.
// Cost: O(s log s) in the size s of the schedules, and a bounded amount on top.
absl::Status PlaceBuffers(Plan& plan);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_PLANNER_MEMORY_MEMORY_PLANNER_H_
