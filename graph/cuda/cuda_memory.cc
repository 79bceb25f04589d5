#include "graph/cuda/cuda_memory.h"

#include <nccl.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/cuda/nccl_status.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

using kernels::CudaStatus;

class CudaMemory : public MemoryBlock {
 public:
  CudaMemory(std::shared_ptr<CudaRank> rank, MemoryKind kind, int64_t num_bytes)
      : rank_(std::move(rank)), kind_(kind), num_bytes_(num_bytes) {}
  ~CudaMemory() override {
    if (address_ == nullptr) return;
    // Replays that use it may still run.
    if (!rank_->queue().Drain()) return;
    const CallerState caller(rank_->device());
    switch (kind_) {
      case MemoryKind::kCommunicating:
        for (const Communicators::Window& window : windows_) rank_->communicators().CloseWindow(window);
        ncclMemFree(address_);
        break;
      case MemoryKind::kLocal:
        cudaFree(address_);
        break;
      case MemoryKind::kHostVisible:
        cudaFreeHost(address_);
        break;
    }
    rank_->account().AddRequested(-requested(), -taken_);
  }

  absl::Status Take() {
    const CallerState caller(rank_->device());
    REPRISE_ASSIGN_OR_RETURN(const int64_t free_bytes, rank_->account().FreeBytes());
    REPRISE_ASSIGN_OR_RETURN(const int64_t before, rank_->account().TakenBytes());
    const size_t bytes = static_cast<size_t>(num_bytes_);
    const std::string what =
        absl::StrCat("taking ", num_bytes_, " bytes on device ", rank_->device(), ", where ", free_bytes, " are free,");
    switch (kind_) {
      case MemoryKind::kCommunicating:
        REPRISE_RETURN_IF_ERROR(NoRoom(NcclStatus(ncclMemAlloc(&address_, bytes), what)));
        break;
      case MemoryKind::kLocal:
        REPRISE_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&address_, bytes), what));
        break;
      case MemoryKind::kHostVisible:
        REPRISE_RETURN_IF_ERROR(CudaStatus(cudaHostAlloc(&address_, bytes, cudaHostAllocMapped), what));
        break;
    }
    if (kind_ == MemoryKind::kHostVisible) return absl::OkStatus();
    REPRISE_ASSIGN_OR_RETURN(const int64_t after, rank_->account().TakenBytes());
    taken_ = std::max(after - before, int64_t{0});
    rank_->account().AddRequested(requested(), taken_);
    return absl::OkStatus();
  }

  absl::Status Register(const std::shared_ptr<MemoryBlock>& self, Lane lane) {
    if (kind_ != MemoryKind::kCommunicating || num_bytes_ == 0 || WindowOf(lane) != nullptr) return absl::OkStatus();
    REPRISE_ASSIGN_OR_RETURN(const Communicators::Window window,
                             rank_->communicators().NewWindow(lane, address_, num_bytes_, self));
    windows_.push_back(window);
    return absl::OkStatus();
  }
  absl::Status FindPeers() {
    if (kind_ != MemoryKind::kCommunicating || num_bytes_ == 0 || !peers_.empty()) return absl::OkStatus();
    const Communicators::Window* const window = WindowOf(Lane::kAllGather);
    if (window == nullptr) return absl::InternalError("memory has no window in which to find other ranks");
    REPRISE_ASSIGN_OR_RETURN(peers_, rank_->communicators().PeerAddresses(*window));
    return absl::OkStatus();
  }
  std::byte* PeerAddress(const void* mine, int peer) const {
    const uintptr_t offset = reinterpret_cast<uintptr_t>(mine) - reinterpret_cast<uintptr_t>(address_);
    if (peers_.empty() || offset >= static_cast<uintptr_t>(num_bytes_)) return nullptr;
    return peers_[static_cast<size_t>(peer)] + offset;
  }

  bool HasWindow() const { return !windows_.empty(); }

  int64_t num_bytes() const override { return num_bytes_; }
  std::byte* address(int) const override { return static_cast<std::byte*>(address_); }

 private:
  const Communicators::Window* WindowOf(Lane lane) const {
    for (const Communicators::Window& window : windows_) {
      if (window.lane == lane) return &window;
    }
    return nullptr;
  }

  // Of the device's memory.
  int64_t requested() const { return kind_ == MemoryKind::kHostVisible ? 0 : num_bytes_; }

  // NCCL reports a lack of memory as an error of CUDA's.
  absl::Status NoRoom(const absl::Status& status) const {
    if (status.ok()) return status;
    size_t free_bytes = 0, total = 0;
    cudaGetLastError();
    if (cudaMemGetInfo(&free_bytes, &total) == cudaSuccess && free_bytes >= static_cast<size_t>(num_bytes_)) {
      return status;
    }
    return absl::ResourceExhaustedError(
        absl::StrCat(std::string(status.message()), "; use a smaller model, fewer slots or more ranks"));
  }

  const std::shared_ptr<CudaRank> rank_;
  const MemoryKind kind_;
  const int64_t num_bytes_;
  int64_t taken_ = 0;
  void* address_ = nullptr;
  std::vector<Communicators::Window> windows_;
  std::vector<std::byte*> peers_;  // by rank: where its block starts
};

}  // namespace

absl::Status RegisterWindow(const std::shared_ptr<MemoryBlock>& block, Lane lane) {
  auto* const memory = dynamic_cast<CudaMemory*>(block.get());
  return memory == nullptr ? absl::OkStatus() : memory->Register(block, lane);
}

bool HasWindow(const MemoryBlock& block) {
  const auto* const memory = dynamic_cast<const CudaMemory*>(&block);
  return memory != nullptr && memory->HasWindow();
}

absl::Status FindPeers(MemoryBlock& block) {
  auto* const memory = dynamic_cast<CudaMemory*>(&block);
  return memory == nullptr ? absl::OkStatus() : memory->FindPeers();
}

std::byte* PeerAddress(const MemoryBlock& block, const void* mine, int peer) {
  const auto* const memory = dynamic_cast<const CudaMemory*>(&block);
  return memory == nullptr ? nullptr : memory->PeerAddress(mine, peer);
}

absl::StatusOr<std::shared_ptr<MemoryBlock>> AllocateCudaMemory(std::shared_ptr<CudaRank> rank, MemoryKind kind,
                                                                int64_t num_bytes) {
  if (num_bytes < 0) return absl::InvalidArgumentError(absl::StrCat("memory of ", num_bytes, " bytes was asked for"));
  auto block = std::make_shared<CudaMemory>(std::move(rank), kind, num_bytes);
  if (num_bytes > 0) REPRISE_RETURN_IF_ERROR(block->Take());
  return std::shared_ptr<MemoryBlock>(std::move(block));
}

}  // namespace reprise::internal
