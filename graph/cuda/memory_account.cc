#include "graph/cuda/memory_account.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

struct DeviceBytes {
  size_t free = 0, total = 0;
};

absl::StatusOr<DeviceBytes> BytesOfDevice() {
  DeviceBytes bytes;
  REPRISE_RETURN_IF_ERROR(kernels::CudaStatus(cudaMemGetInfo(&bytes.free, &bytes.total), "asking for free memory"));
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MemoryAccount>> MemoryAccount::Create(int device, bool by_process) {
  std::unique_ptr<MemoryAccount> account(new MemoryAccount);
  if (by_process) {
    REPRISE_ASSIGN_OR_RETURN(account->process_memory_, ProcessMemory::Create(device));
  }
  REPRISE_ASSIGN_OR_RETURN(account->taken_at_start_, account->TakenBytes());
  return account;
}

absl::StatusOr<int64_t> MemoryAccount::FreeBytes() const {
  REPRISE_ASSIGN_OR_RETURN(const DeviceBytes bytes, BytesOfDevice());
  return static_cast<int64_t>(bytes.free);
}

absl::StatusOr<int64_t> MemoryAccount::TakenBytes() const {
  if (process_memory_ != nullptr) return process_memory_->Bytes();
  REPRISE_ASSIGN_OR_RETURN(const DeviceBytes bytes, BytesOfDevice());
  return static_cast<int64_t>(bytes.total - bytes.free);
}

MemoryUse MemoryAccount::use() const {
  MemoryUse use = use_;
  const absl::StatusOr<int64_t> taken = TakenBytes();
  if (!taken.ok()) return use;
  use.context = taken_at_start_;
  use.communication = *taken - taken_at_start_ - use.requested - use.rounding - use.recording;
  return use;
}

}  // namespace reprise::internal
