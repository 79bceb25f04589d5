// A placement in O(n log n), for models of any size: long lives as a stack, short ones above it in order of time.
#ifndef REPRISE_CORE_PLANNER_MEMORY_LAYERED_FIT_H_
#define REPRISE_CORE_PLANNER_MEMORY_LAYERED_FIT_H_

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "core/planner/memory/placement.h"
#include "core/planner/memory/skyline.h"

namespace reprise::internal {

// Items whose intervals have a point in common share no byte.
struct IntervalItem {
  int64_t bytes = 0;
  absl::InlinedVector<PointInterval, 1> intervals = {};
};

// Items that last for more than `longest_short` points, or have several intervals, are stacked first, longest at the
// bottom: activations that are kept from forward to backward nest, so they leave no holes. The others go, in order of
// their begin, to the first gap above what is stacked there.
Placement PlaceInLayers(const std::vector<IntervalItem>& items, int32_t num_points, int32_t longest_short);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_PLANNER_MEMORY_LAYERED_FIT_H_
