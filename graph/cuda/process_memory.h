// Device memory that this process alone has taken, where the driver tells only what all processes on a device have.
#ifndef REPRISE_GRAPH_CUDA_PROCESS_MEMORY_H_
#define REPRISE_GRAPH_CUDA_PROCESS_MEMORY_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace reprise::internal {

// By NVML, the driver's library of management, which is looked up when the first one is made.
class ProcessMemory {
 public:
  // Of CUDA's device `device`. Unavailable if NVML is missing or does not tell.
  static absl::StatusOr<std::unique_ptr<ProcessMemory>> Create(int device);
  virtual ~ProcessMemory() = default;
  // In use by this process, contexts and libraries included. Unavailable if NVML does not tell.
  virtual absl::StatusOr<int64_t> Bytes() const = 0;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_PROCESS_MEMORY_H_
