// What every placement needs at least.
#ifndef REPRISE_CORE_LOWER_BOUND_H_
#define REPRISE_CORE_LOWER_BOUND_H_

#include <array>
#include <cstdint>
#include <vector>

#include "core/lifetimes.h"
#include "reprise/core/plan.h"

namespace reprise::internal {

// By storage: the most bytes, each buffer padded to kBufferAlignment, that are live at one moment of a legal order of the
// schedule's commands. Tried are issue order and, for every ranking of the lanes, the order that always runs the next
// command of the first lane that can go on. Lives that meet in a legal order can never share bytes.
std::array<int64_t, kNumStorages> MostLiveBytes(const Plan& plan, const Schedule& schedule,
                                                const std::vector<Life>& lives);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_LOWER_BOUND_H_
