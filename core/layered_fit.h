// A placement in O(n log n), for models of any size: long lives as a stack, short ones above it in order of time.
#ifndef REPRISE_CORE_LAYERED_FIT_H_
#define REPRISE_CORE_LAYERED_FIT_H_

#include <cstdint>
#include <vector>

#include "core/placement.h"

namespace reprise::internal {

// Items that last for more than `longest_short` points, or have several spans, are stacked first, longest at the bottom:
// activations that are kept from forward to backward nest, so they leave no holes. The others go, in order of their
// begin, to the first gap above what is stacked there.
Placement PlaceInLayers(const std::vector<Item>& items, int32_t num_points, int32_t longest_short);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_LAYERED_FIT_H_
