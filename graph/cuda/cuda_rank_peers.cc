// What a CudaRank has open to the other ranks' devices: windows, and the flags of copies.
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/comm/handshake.h"
#include "graph/cuda/cuda_rank.h"
#include "graph/cuda/nccl_status.h"
#include "graph/cuda/peer_addresses.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {

using kernels::CudaStatus;

absl::StatusOr<CudaRank::Window> CudaRank::NewWindow(Lane lane, void* address, int64_t num_bytes,
                                                     std::shared_ptr<const void> owner) {
  const auto handle = std::make_shared<ncclWindow_t>(nullptr);
  Window window = {.lane = lane, .number = windows_.Add(lane, num_bytes)};
  const absl::Status status = WaitForRanks([=, communicator = communicator(lane), owner = std::move(owner)] {
    return NcclStatus(ncclCommWindowRegister(communicator, address, static_cast<size_t>(num_bytes), handle.get(),
                                             NCCL_WIN_COLL_SYMMETRIC),
                      absl::StrCat("registering ", num_bytes, " bytes with NCCL"), communicator);
  });
  if (!status.ok()) {
    windows_.Remove(window.number);
    return status;
  }
  window.handle = *handle;
  return window;
}

void CudaRank::CloseWindow(const Window& window) {
  windows_.Remove(window.number);
  // A communicator that was aborted has given its windows back.
  if (communicator(window.lane) != nullptr) ncclCommWindowDeregister(communicator(window.lane), window.handle);
}

absl::StatusOr<std::vector<std::byte*>> CudaRank::PeerAddresses(const Window& window) {
  const CallerState caller(device_);
  return FindPeerAddresses(communicator(window.lane), window.handle, size(), launch_stream_, peer_addresses_);
}

absl::Status CudaRank::TakePeerFlags() {
  const CallerState caller(device_);
  if (flags_stream_.get() == nullptr) {
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(flags_stream_.receive(), cudaStreamNonBlocking),
                                       "creating the stream of flags"));
  }
  if (peer_addresses_ == nullptr) {
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&peer_addresses_, static_cast<size_t>(size()) * sizeof(std::byte*)),
                                       "taking memory for addresses"));
  }
  if (flags_ != nullptr) return absl::OkStatus();
  const size_t flags = std::size(kCommunicatingLanes) * PeerFlags::kFlagsPerRank * static_cast<size_t>(size());
  set_flags_.assign(flags + 1, PeerFlags::kSet);
  std::vector<uint32_t> at_first(flags, PeerFlags::kClear);
  at_first.push_back(PeerFlags::kSet);
  token_ = static_cast<uint32_t>(RandomNonce().low);
  at_first.push_back(token_);
  const size_t num_bytes = at_first.size() * sizeof(uint32_t);
  void* memory = nullptr;
  REPRISE_RETURN_IF_ERROR(NcclStatus(ncclMemAlloc(&memory, num_bytes), "taking memory for flags"));
  absl::Status status = CudaStatus(
      cudaMemcpyAsync(memory, at_first.data(), num_bytes, cudaMemcpyHostToDevice, launch_stream_), "clearing flags");
  status.Update(CudaStatus(cudaStreamSynchronize(launch_stream_), "clearing flags"));
  if (status.ok()) {
    flags_ = static_cast<uint32_t*>(memory);
  } else {
    ncclMemFree(memory);
  }
  return status;
}

absl::Status CudaRank::OpenPeerFlags() {
  if (flags_window_.has_value()) return absl::OkStatus();
  const CallerState caller(device_);
  const size_t words = set_flags_.size() + 1;
  REPRISE_ASSIGN_OR_RETURN(
      flags_window_,
      NewWindow(Lane::kAllGather, flags_, static_cast<int64_t>(words * sizeof(uint32_t)), shared_from_this()));
  return absl::OkStatus();
}

absl::Status CudaRank::FindPeerFlags(absl::Span<const uint32_t> tokens) {
  if (peer_flags(Lane::kAllGather).size() > 0) return absl::OkStatus();
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::byte*> blocks, PeerAddresses(*flags_window_));
  std::vector<const uint32_t*> at_peers;
  for (std::byte* const block : blocks) at_peers.push_back(reinterpret_cast<uint32_t*>(block) + set_flags_.size());
  const CallerState caller(device_);
  REPRISE_RETURN_IF_ERROR(CheckTokens(at_peers, tokens, launch_stream_));
  const size_t words = PeerFlags::kFlagsPerRank * static_cast<size_t>(size());
  for (size_t l = 0; l < std::size(kCommunicatingLanes); ++l) {
    PeerFlags& flags = lanes_[static_cast<int>(kCommunicatingLanes[l])].peer_flags;
    flags.rank = rank();
    flags.set = flags_ + set_flags_.size() - 1;
    for (std::byte* const block : blocks) flags.blocks.push_back(reinterpret_cast<uint32_t*>(block) + l * words);
  }
  return absl::OkStatus();
}

void CudaRank::SetPeerFlags() {
  cudaMemcpyAsync(flags_, set_flags_.data(), set_flags_.size() * sizeof(uint32_t), cudaMemcpyHostToDevice,
                  flags_stream_.get());
}

}  // namespace reprise::internal
