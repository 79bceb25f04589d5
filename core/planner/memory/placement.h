// Places items with given spans of life in as few bytes as it finds.
#ifndef REPRISE_CORE_PLANNER_MEMORY_PLACEMENT_H_
#define REPRISE_CORE_PLANNER_MEMORY_PLACEMENT_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "core/planner/memory/lifetimes.h"
#include "reprise/core/plan.h"

namespace reprise::internal {

constexpr int64_t PaddedBytes(int64_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

// Something with one offset.
struct Item {
  int64_t bytes = 0;                        // positive
  absl::InlinedVector<Span, 1> spans = {};  // at least one
};
inline bool Interfere(const Item& a, const Item& b) {
  return std::any_of(a.spans.begin(), a.spans.end(), [&](const Span& of_a) {
    return std::any_of(b.spans.begin(), b.spans.end(), [&](const Span& of_b) { return Interfere(of_a, of_b); });
  });
}

// Items that interfere share no byte. Every offset is a sum of items' bytes, so a common alignment of these is one of
// offsets.
struct Placement {
  std::vector<int64_t> offsets = {};  // by item
  int64_t num_bytes = 0;
};

// The smallest of several placements, or the first found of `enough` bytes. Points of spans are below `num_points`. The
// bytes of all items must add up to an int64. Cost: O(n log n) in the number n of spans, and a bounded amount on top.
Placement Place(const std::vector<Item>& items, int32_t num_points, int64_t enough);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_PLANNER_MEMORY_PLACEMENT_H_
