#include "core/planner/memory/intervals.h"

#include <algorithm>

namespace reprise::internal {
namespace {

// The first that ends after the moment.
Intervals::const_iterator FirstAfter(const Intervals& intervals, double moment) {
  return std::partition_point(intervals.begin(), intervals.end(),
                              [&](const Interval& interval) { return interval.end <= moment; });
}

}  // namespace

Intervals Union(std::vector<Interval> parts) {
  std::sort(parts.begin(), parts.end(), [](const Interval& a, const Interval& b) { return a.start < b.start; });
  Intervals result;
  for (const Interval& part : parts) {
    if (part.end <= part.start) continue;
    if (result.empty() || result.back().end < part.start) {
      result.push_back(part);
    } else {
      result.back().end = std::max(result.back().end, part.end);
    }
  }
  return result;
}

Intervals Subtract(const Intervals& a, const Intervals& b) {
  Intervals result;
  for (const Interval& interval : a) {
    double start = interval.start;
    for (auto other = FirstAfter(b, start); other != b.end() && other->start < interval.end; ++other) {
      if (other->start > start) result.push_back({start, other->start});
      start = other->end;
    }
    if (start < interval.end) result.push_back({start, interval.end});
  }
  return result;
}

double Length(const Intervals& intervals) {
  double length = 0;
  for (const Interval& interval : intervals) length += interval.end - interval.start;
  return length;
}

double LengthWithin(const Intervals& intervals, const Interval& interval) {
  double length = 0;
  for (auto other = FirstAfter(intervals, interval.start); other != intervals.end() && other->start < interval.end;
       ++other) {
    length += std::min(other->end, interval.end) - std::max(other->start, interval.start);
  }
  return length;
}

}  // namespace reprise::internal
