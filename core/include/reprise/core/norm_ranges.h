// How the sum of squares of a group's accumulator is split: into ranges of one size that follows from the accumulator's
// alone, so that no sum depends on a device, an address or chance. Each range has one double, its partial norm.
#ifndef REPRISE_CORE_NORM_RANGES_H_
#define REPRISE_CORE_NORM_RANGES_H_

#include <cstdint>

namespace reprise {

// Ranges are whole tiles of this many elements: what a block of the device's kernel has in flight.
inline constexpr int64_t kNormTile = 16384;
// Of a group, at most. Large groups have 513 to 1024, which 132 multiprocessors (H200) share such that each is busy for
// four fifths of the time or more; and SumNorm has no more than 8 KiB of each group to read.
inline constexpr int64_t kMaxNormRanges = 1024;

// `elements`: of the accumulator, padding included. The last range may be shorter.
constexpr int64_t NormRangeElements(int64_t elements) {
  const int64_t largest = kMaxNormRanges * kNormTile;
  return elements > largest ? (elements + largest - 1) / largest * kNormTile : kNormTile;
}
constexpr int64_t NormRanges(int64_t elements) {
  return (elements + NormRangeElements(elements) - 1) / NormRangeElements(elements);
}

}  // namespace reprise

#endif  // REPRISE_CORE_NORM_RANGES_H_
