// Placements that look at all pairs of items, within a budget of comparisons: better than layers for small models.
#ifndef REPRISE_CORE_PLANNER_MEMORY_FIRST_FIT_H_
#define REPRISE_CORE_PLANNER_MEMORY_FIRST_FIT_H_

#include <cstdint>
#include <vector>

#include "core/planner/memory/placement.h"

namespace reprise::internal {

// Replaces `best` by better placements until it has `enough` bytes or the budget is spent. Each takes the items in some
// order (most bytes times points first, and changes of that) and puts each at the first free offset.
void ImproveByFirstFit(const std::vector<Item>& items, int64_t enough, Placement& best);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_PLANNER_MEMORY_FIRST_FIT_H_
