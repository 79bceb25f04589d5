// Tells sums from what is assigned, by where they started.
#ifndef REPRISE_GRAPH_CHECK_SUMS_H_
#define REPRISE_GRAPH_CHECK_SUMS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "graph/checked_use.h"
#include "graph/memory_probe.h"
#include "reprise/core/dtype.h"

namespace reprise::internal {

// Starts of sums, as the byte that a number repeats: from 6e-10 to 8e37 in fp32 and in bf16, each about 4 times the one
// before.
inline constexpr uint8_t kLeastStart = 0x30, kLargestStart = 0x7e;
// From a start that is lost to the next one, 65536 times larger.
inline constexpr uint8_t kStartStep = 8;
// The least that is no less than any of the sums, so that neither drowns in the other.
uint8_t StartFor(DType dtype, const Bytes& sums);

// Reads a gradient that is added to: the whole, or, of more than 8 MiB, eight parts, one after another.
absl::Status ReadParts(MemoryProbe& probe, const CheckedUse& use, Bytes& bytes);

struct NoSum {
  std::string text = {};     // empty: it is one
  bool keeps_start = false;  // where terms are lost, which a larger start would hide
};
// Of what ReadParts gave of sums from zeros and from `use.start`. See RunOptions::check_writes for the bound.
NoSum CompareSums(const CheckedUse& use, const Bytes& from_zero, const Bytes& from_start);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CHECK_SUMS_H_
