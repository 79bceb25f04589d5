#include "core/placement.h"

#include <algorithm>
#include <utility>

#include "core/first_fit.h"
#include "core/layered_fit.h"

namespace reprise::internal {
namespace {

// Bounds what layers cost on top of the first two tries. XXX
constexpr size_t kMaxPlaced = 400'000;

// Time run backwards: what was placed as it begins is placed as it ends. Of the order between lanes only intervals of
// points are left, which may overlap where lives do not meet, never the reverse.
std::vector<Item> Reversed(const std::vector<Item>& items, int32_t num_points) {
  std::vector<Item> reversed = items;
  for (Item& item : reversed) {
    for (Span& span : item.spans) {
      const int32_t begin = num_points - 1 - span.end();
      span = {begin, 0, {num_points - 1 - span.begin, -1, -1, -1}};
    }
    std::reverse(item.spans.begin(), item.spans.end());
  }
  return reversed;
}

}  // namespace

Placement Place(const std::vector<Item>& items, int32_t num_points, int64_t enough) {
  Placement best = PlaceInLayers(items, num_points, num_points);
  if (best.num_bytes <= enough) return best;
  const std::vector<Item> reversed = Reversed(items, num_points);
  const auto consider = [&](const std::vector<Item>& from, int32_t longest_short) {
    if (best.num_bytes <= enough) return;
    Placement placement = PlaceInLayers(from, num_points, longest_short);
    if (placement.num_bytes < best.num_bytes) best = std::move(placement);
  };
  consider(reversed, num_points);
  size_t placed = 0;
  for (int32_t longest_short = 4; longest_short < num_points && placed < kMaxPlaced; longest_short *= 4) {
    consider(items, longest_short);
    consider(reversed, longest_short);
    placed += 2 * items.size();
    if (longest_short > num_points / 4) break;
  }
  ImproveByFirstFit(items, enough, best);
  return best;
}

}  // namespace reprise::internal
