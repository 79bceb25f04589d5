#include "core/planner/memory/first_fit.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

namespace reprise::internal {
namespace {

constexpr int64_t kMaxComparisons = 1'000'000;
// 1,500 random models end 0.446 % over their bound on average; after 256 rounds 0.475 %, after 1024 rounds 0.454 %.
constexpr int kMaxRounds = 4096;

class FirstFit {
 public:
  FirstFit(const std::vector<Item>& items, Placement& best) : items_(items), best_(best) {
    placed_.reserve(items.size());
  }

  bool spent() const { return comparisons_ >= kMaxComparisons; }

  // Places the items in this order. If all end below best's end the result becomes best: returns -1. Otherwise returns
  // the place in the order of the first that does not.
  int Try(const std::vector<int32_t>& order) {
    placed_.clear();
    int64_t end = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      const Item& item = items_[order[i]];
      const int64_t offset = FirstFree(item);
      end = std::max(end, offset + item.bytes);
      if (end >= best_.num_bytes || spent()) return static_cast<int>(i);
      const auto above = std::partition_point(placed_.begin(), placed_.end(),
                                              [&](const Placed& other) { return other.offset <= offset; });
      placed_.insert(above, {offset, offset + item.bytes, item.spans.front(), item.spans.size() == 1, order[i]});
    }
    for (const Placed& placed : placed_) best_.offsets[placed.item] = placed.offset;
    best_.num_bytes = end;
    return -1;
  }

 private:
  struct Placed {
    int64_t offset, end;
    Span span;  // the first; here, because most items have only one
    bool single;
    int32_t item;
  };

  int64_t FirstFree(const Item& item) {
    int64_t offset = 0;
    const bool single = item.spans.size() == 1;
    for (const Placed& other : placed_) {
      if (other.offset >= offset + item.bytes) break;
      ++comparisons_;
      if (other.end <= offset) continue;
      const bool interfere =
          single && other.single ? Interfere(item.spans.front(), other.span) : Interfere(item, items_[other.item]);
      if (interfere) offset = other.end;
    }
    return offset;
  }

  const std::vector<Item>& items_;
  Placement& best_;
  std::vector<Placed> placed_;  // by offset
  int64_t comparisons_ = 0;
};

// What takes most bytes for most points first. Of 1,500 random models started from other orders (bytes, points, begin)
// only 0.4 % ended in fewer bytes, by 0.03 % on average of all.
std::vector<int32_t> FirstOrder(const std::vector<Item>& items) {
  std::vector<double> area;
  for (const Item& item : items) {
    double points = 0;
    for (const Span& span : item.spans) points += span.end() - span.begin + 1;
    area.push_back(static_cast<double>(item.bytes) * points);
  }
  std::vector<int32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return area[a] > area[b]; });
  return order;
}

}  // namespace

// An item that does not fit in time moves to the front half of what precedes it, at a place drawn from a fixed seed:
// the placement that follows gives it room where it hurts least.
void ImproveByFirstFit(const std::vector<Item>& items, int64_t enough, Placement& best) {
  FirstFit fit(items, best);
  std::mt19937_64 random(0);
  std::vector<int32_t> order = FirstOrder(items);
  for (int round = 0; round < kMaxRounds && best.num_bytes > enough && !fit.spent(); ++round) {
    const int late = fit.Try(order);
    if (late <= 0) continue;
    const int to = static_cast<int>(random() % static_cast<uint64_t>(late)) / 2;
    std::rotate(order.begin() + to, order.begin() + late, order.begin() + late + 1);
  }
}

}  // namespace reprise::internal
