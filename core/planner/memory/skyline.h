// The height in use at each point, as items are put on top of each other.
#ifndef REPRISE_CORE_PLANNER_MEMORY_SKYLINE_H_
#define REPRISE_CORE_PLANNER_MEMORY_SKYLINE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace reprise::internal {

// Both ends included.
struct PointInterval {
  int32_t begin = 0, end = 0;
};

// Raises over intervals and greatest heights over intervals, each in the logarithm of the number of points.
class Skyline {
 public:
  explicit Skyline(int32_t num_points) {
    while (leaves_ < num_points) leaves_ *= 2;
  }

  // The greatest height in the interval.
  int64_t Highest(const PointInterval& interval) const {
    return highest_.empty() ? 0 : Highest(1, 0, leaves_ - 1, interval);
  }
  // Makes every height in the interval at least `height`.
  void Raise(const PointInterval& interval, int64_t height) {
    highest_.resize(2 * leaves_);
    raised_.resize(2 * leaves_);
    Raise(1, 0, leaves_ - 1, interval, height);
  }

 private:
  int64_t Highest(int32_t branch, int32_t first, int32_t last, const PointInterval& interval) const {
    if (interval.begin <= first && last <= interval.end) return highest_[branch];
    if (interval.end < first || last < interval.begin) return 0;
    const int32_t middle = first + (last - first) / 2;
    return std::max({raised_[branch], Highest(2 * branch, first, middle, interval),
                     Highest(2 * branch + 1, middle + 1, last, interval)});
  }
  void Raise(int32_t branch, int32_t first, int32_t last, const PointInterval& interval, int64_t height) {
    if (interval.end < first || last < interval.begin) return;
    highest_[branch] = std::max(highest_[branch], height);
    if (interval.begin <= first && last <= interval.end) {
      raised_[branch] = std::max(raised_[branch], height);
      return;
    }
    const int32_t middle = first + (last - first) / 2;
    Raise(2 * branch, first, middle, interval, height);
    Raise(2 * branch + 1, middle + 1, last, interval, height);
  }

  // A complete binary tree over points, root at 1: the greatest height below a branch, and what all of it was raised
  // to. Empty until something is raised.
  int32_t leaves_ = 1;
  std::vector<int64_t> highest_, raised_;
};

}  // namespace reprise::internal

#endif  // REPRISE_CORE_PLANNER_MEMORY_SKYLINE_H_
