#include "core/plan/happens_before.h"

#include <algorithm>

namespace reprise::internal {

void HappensBefore::Add(Lane lane, const std::vector<Wait>& waits) {
  const int32_t id = static_cast<int32_t>(lanes_.size());
  Clock& tail = tails_[static_cast<int>(lane)];
  for (const Wait& wait : waits) {
    const Clock& end = ends_[wait.command.value()];
    for (int i = 0; i < kNumLanes; ++i) tail[i] = std::max(tail[i], end[i]);
  }
  lanes_.push_back(lane);
  starts_.push_back(tail);
  tail[static_cast<int>(lane)] = id;
  ends_.push_back(tail);
}

}  // namespace reprise::internal
