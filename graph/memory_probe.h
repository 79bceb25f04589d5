// How checks of compute functions reach the memory of one rank.
#ifndef REPRISE_GRAPH_MEMORY_PROBE_H_
#define REPRISE_GRAPH_MEMORY_PROBE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace reprise::internal {

// All of it comes in order with the work of the command that is checked. Read, Write and Digest wait.
class MemoryProbe {
 public:
  virtual ~MemoryProbe() = default;
  virtual absl::Status Fill(void* to, uint8_t value, int64_t num_bytes) = 0;
  virtual absl::Status Read(void* to_host, const void* from, int64_t num_bytes) = 0;
  virtual absl::Status Write(void* to, const void* from_host, int64_t num_bytes) = 0;
  // 64 bits that equal bytes have in common, and other bytes almost surely not.
  virtual absl::StatusOr<uint64_t> Digest(const void* from, int64_t num_bytes) = 0;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_MEMORY_PROBE_H_
