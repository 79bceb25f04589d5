// Where a rank's device memory went.
#ifndef REPRISE_GRAPH_CUDA_MEMORY_ACCOUNT_H_
#define REPRISE_GRAPH_CUDA_MEMORY_ACCOUNT_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "graph/cuda/process_memory.h"
#include "reprise/graph/world.h"

namespace reprise::internal {

// In bytes. Called with its device current: see caller_state.h.
class MemoryAccount {
 public:
  // Of what is taken from now on. `by_process`: other processes use the device too, and count for nothing.
  static absl::StatusOr<std::unique_ptr<MemoryAccount>> Create(int device, bool by_process);

  // Free on the device, for whichever process comes first.
  absl::StatusOr<int64_t> FreeBytes() const;
  // In use: on the whole device, or by this process.
  absl::StatusOr<int64_t> TakenBytes() const;
  void AddRequested(int64_t requested, int64_t taken) {
    use_.requested += requested;
    use_.rounding += taken - requested;
  }
  void AddRecording(int64_t taken) { use_.recording += taken; }  // or given back
  MemoryUse use() const;

 private:
  MemoryAccount() = default;

  std::unique_ptr<ProcessMemory> process_memory_;  // null where the device is this rank's alone
  int64_t taken_at_start_ = 0;
  MemoryUse use_;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_MEMORY_ACCOUNT_H_
