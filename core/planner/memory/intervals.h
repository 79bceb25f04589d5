// Sets of moments.
#ifndef REPRISE_CORE_PLANNER_MEMORY_INTERVALS_H_
#define REPRISE_CORE_PLANNER_MEMORY_INTERVALS_H_

#include <vector>

namespace reprise::internal {

struct Interval {
  double start = 0, end = 0;
  friend bool operator==(const Interval&, const Interval&) = default;
};

// By start, disjoint, none empty.
using Intervals = std::vector<Interval>;

// What is in any of them, in any order.
Intervals Union(std::vector<Interval> parts);
// What is in `a` and not in `b`.
Intervals Subtract(const Intervals& a, const Intervals& b);
double Length(const Intervals& intervals);
// Of the part of `interval` that is in `intervals`.
double LengthWithin(const Intervals& intervals, const Interval& interval);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_PLANNER_MEMORY_INTERVALS_H_
