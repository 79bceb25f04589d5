// What every placement needs at least.
#ifndef REPRISE_CORE_PLANNER_MEMORY_LOWER_BOUND_H_
#define REPRISE_CORE_PLANNER_MEMORY_LOWER_BOUND_H_

#include <array>
#include <cstdint>
#include <vector>

#include "core/planner/memory/lifetimes.h"
#include "reprise/core/plan.h"

namespace reprise::internal {

// By storage: the most bytes, each buffer padded to kBufferAlignment, that are live at one moment of a legal run of the
// schedule. In the runs that are tried, every command begins as soon as it may, and of the commands that have begun one
// at a time completes: the one issued first, or, for each ranking of the lanes, the one of the first lane. Lives that
// are in use at once in a legal run can never share bytes.
std::array<int64_t, kNumStorages> MostLiveBytes(const Plan& plan, const Schedule& schedule, const HappensBefore& order,
                                                const std::vector<Life>& lives);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_PLANNER_MEMORY_LOWER_BOUND_H_
