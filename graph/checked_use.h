// What a compute function is given, as the check of its writes fills and compares it.
#ifndef REPRISE_GRAPH_CHECKED_USE_H_
#define REPRISE_GRAPH_CHECKED_USE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/bindings.h"
#include "graph/memory_probe.h"
#include "reprise/core/schedule.h"

namespace reprise::internal {

using Bytes = std::vector<std::byte>;

// As many bytes of it as the dtype has.
using Element = std::array<std::byte, sizeof(float)>;
Element Repeated(uint8_t byte);

// A use of a Forward or Backward: an operand, or scratch.
struct CheckedUse {
  // What it is to the check.
  enum class Kind { kAssigned, kAddedTo, kState, kOnlyRead, kScratch };
  Kind kind = Kind::kOnlyRead;
  DType dtype = DType::kUInt8;
  std::byte* address = nullptr;
  int64_t num_bytes = 0;
  std::string name = {};  // output of tensor "y"
  // Does nobody else read it while the function is called? Ranks may share external inputs.
  bool is_own = false;
  Bytes held = {};    // before the first run, where it is put back
  uint8_t start = 0;  // byte of the number that a sum starts from

  int64_t elements() const { return num_bytes / SizeOf(dtype); }
};

// Those that have bytes, in the command's order.
std::vector<CheckedUse> CheckedUses(const Bindings& bindings, int local, const ScheduledCommand& command);

// `bytes` are all that it holds: does element i hold the element, and how many do?
bool Holds(const CheckedUse& use, const Bytes& bytes, int64_t i, const Element& element);
int64_t CountHolding(const CheckedUse& use, const Bytes& bytes, const Element& element);

// Lets all of its elements hold it.
absl::Status FillUse(MemoryProbe& probe, const CheckedUse& use, const Element& element);
// Do they all?
absl::StatusOr<bool> IsFilled(MemoryProbe& probe, const CheckedUse& use, const Element& element);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CHECKED_USE_H_
