#include "graph/cuda/upload.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

using kernels::CudaStatus;

constexpr int64_t kAlignment = 256;  // of sources, for whole transactions

}  // namespace

Upload::~Upload() {
  if (memory_ == nullptr) return;
  if (!rank_->queue().Drain()) return;
  const CallerState caller(rank_->device());
  cudaFreeHost(memory_);
}

absl::Status Upload::Open() {
  if (memory_ != nullptr) return absl::OkStatus();
  for (Part& part : parts_) {
    if (part.copied) continue;
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(part.copied.receive(), cudaEventDisableTiming), "creating an event"));
  }
  void* memory = nullptr;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaHostAlloc(&memory, kParts * kPartBytes, cudaHostAllocDefault),
                                     "taking pinned memory for copies to the device"));
  memory_ = static_cast<std::byte*>(memory);
  for (int p = 0; p < kParts; ++p) parts_[p].memory = memory_ + p * kPartBytes;
  return absl::OkStatus();
}

absl::StatusOr<Upload::Part*> Upload::NextPart(int64_t num_bytes) {
  Part* part = &parts_[current_];
  if (part->used + num_bytes <= kPartBytes) return part;
  current_ = (current_ + 1) % kParts;
  part = &parts_[current_];
  if (part->in_flight) REPRISE_RETURN_IF_ERROR(rank_->queue().WaitFor(part->copied.get()));
  part->in_flight = false;
  part->used = 0;
  return part;
}

absl::Status Upload::Copy(void* destination, const void* source, int64_t num_bytes) {
  const CallerState caller(rank_->device());
  REPRISE_RETURN_IF_ERROR(Open());
  for (int64_t done = 0; done < num_bytes;) {
    const int64_t bytes = std::min(num_bytes - done, kPartBytes);
    REPRISE_ASSIGN_OR_RETURN(Part* const part, NextPart(bytes));
    std::byte* const pinned = part->memory + part->used;
    std::memcpy(pinned, static_cast<const std::byte*>(source) + done, static_cast<size_t>(bytes));
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(static_cast<std::byte*>(destination) + done, pinned,
                                                       static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
                                       "copying to the device"));
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(part->copied.get(), stream_), "recording an event"));
    part->in_flight = true;
    part->used += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    done += bytes;
  }
  return absl::OkStatus();
}

}  // namespace reprise::internal
