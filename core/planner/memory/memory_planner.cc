#include "core/planner/memory/memory_planner.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/planner/memory/lifetimes.h"
#include "core/planner/memory/lower_bound.h"
#include "core/planner/memory/placement.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// The buffers of one transient arena that are ever live, and when, over all schedules one after the other.
class ArenaItems {
 public:
  explicit ArenaItems(size_t num_buffers) : item_of_(num_buffers, -1) {}

  // The lives of one schedule, the next in time; of which at least `live_bytes` are live at once.
  void Add(const Plan& plan, const std::vector<Life>& lives, const HappensBefore& order, int64_t live_bytes) {
    const Spans found = FindSpans(lives, order, num_points_);
    for (size_t i = 0; i < lives.size(); ++i) ItemOf(plan, lives[i].buffer).spans.push_back(found.spans[i]);
    num_points_ = found.end_point;
    lower_bound_ = std::max(lower_bound_, live_bytes);
  }

  int64_t lower_bound() const { return lower_bound_; }
  // Returns the bytes of the arena.
  int64_t Place(Plan& plan) const {
    const Placement placement = internal::Place(items_, num_points_, lower_bound_);
    for (size_t i = 0; i < buffers_.size(); ++i) plan.buffers[buffers_[i].value()].offset = placement.offsets[i];
    return placement.num_bytes;
  }

 private:
  Item& ItemOf(const Plan& plan, BufferId buffer) {
    int32_t& item = item_of_[buffer.value()];
    if (item < 0) {
      item = static_cast<int32_t>(items_.size());
      items_.emplace_back().bytes = PaddedBytes(plan.buffer(buffer).num_bytes);
      buffers_.push_back(buffer);
    }
    return items_[item];
  }

  std::vector<int32_t> item_of_;  // by buffer; -1: none
  std::vector<Item> items_;
  std::vector<BufferId> buffers_;  // by item
  int32_t num_points_ = 0;
  int64_t lower_bound_ = 0;
};

// Places persistent buffers. Transient ones get offset 0 and are only added up, so that no sum of any can overflow.
absl::Status PlaceOneAfterTheOther(Plan& plan) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  std::array<int64_t, kNumStorages> end = {};
  int64_t total = 0;
  for (Buffer& buffer : plan.buffers) {
    buffer.offset = 0;
    if (buffer.storage == Storage::kExternal || buffer.num_bytes == 0) continue;
    if (buffer.num_bytes > kMax - (kBufferAlignment - 1) - total) {
      return absl::ResourceExhaustedError(
          absl::StrCat("buffer ", buffer.name, " of ", buffer.num_bytes, " bytes in storage ",
                       std::string(Name(buffer.storage)), " does not fit behind the ", total,
                       " bytes of the buffers before it: together they exceed ", kMax, "; make the tensors smaller"));
    }
    total += PaddedBytes(buffer.num_bytes);
    int64_t& end_of_storage = end[static_cast<int>(buffer.storage)];
    if (!IsTransient(buffer.storage)) buffer.offset = end_of_storage;
    end_of_storage += PaddedBytes(buffer.num_bytes);
  }
  for (int s = 0; s < kNumStorages; ++s) {
    if (!IsTransient(static_cast<Storage>(s))) plan.memory.num_bytes[s] = end[s];
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PlaceBuffers(Plan& plan) {
  plan.memory = {};
  REPRISE_RETURN_IF_ERROR(PlaceOneAfterTheOther(plan));
  std::vector<ArenaItems> arenas(kNumStorages, ArenaItems(plan.buffers.size()));
  for (const Schedule& schedule : plan.schedules) {
    const HappensBefore order = OrderOf(schedule);
    const std::vector<Life> lives = FindLives(plan, schedule, order);
    const std::array<int64_t, kNumStorages> live = MostLiveBytes(plan, schedule, order, lives);
    std::array<std::vector<Life>, kNumStorages> by_storage;
    for (const Life& life : lives) by_storage[static_cast<int>(plan.buffer(life.buffer).storage)].push_back(life);
    for (int s = 0; s < kNumStorages; ++s) {
      if (!by_storage[s].empty()) arenas[s].Add(plan, by_storage[s], order, live[s]);
    }
  }
  for (int s = 0; s < kNumStorages; ++s) {
    if (!IsTransient(static_cast<Storage>(s))) continue;
    plan.memory.lower_bound[s] = arenas[s].lower_bound();
    plan.memory.num_bytes[s] = arenas[s].Place(plan);
  }
  return absl::OkStatus();
}

}  // namespace reprise::internal
