#include "graph/cuda/flag_memory.h"

#include <nccl.h>

#include "graph/comm/handshake.h"
#include "graph/cuda/nccl_status.h"
#include "graph/cuda/peer_addresses.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {

using kernels::CudaStatus;

FlagMemory::~FlagMemory() {
  if (flags_ != nullptr) ncclMemFree(flags_);
}

absl::Status FlagMemory::Take(cudaStream_t stream) {
  if (!stream_) {
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(stream_.receive(), cudaStreamNonBlocking),
                                       "creating the stream of flags"));
  }
  if (flags_ != nullptr) return absl::OkStatus();
  const size_t flags = lanes_.size() * PeerFlags::kFlagsPerRank * static_cast<size_t>(place_.size());
  set_flags_.assign(flags + 1, PeerFlags::kSet);
  std::vector<uint32_t> at_first(flags, PeerFlags::kClear);
  at_first.push_back(PeerFlags::kSet);
  token_ = static_cast<uint32_t>(RandomNonce().low);
  at_first.push_back(token_);
  const size_t num_bytes = at_first.size() * sizeof(uint32_t);
  void* memory = nullptr;
  REPRISE_RETURN_IF_ERROR(NcclStatus(ncclMemAlloc(&memory, num_bytes), "taking memory for flags"));
  absl::Status status =
      CudaStatus(cudaMemcpyAsync(memory, at_first.data(), num_bytes, cudaMemcpyHostToDevice, stream), "clearing flags");
  status.Update(CudaStatus(cudaStreamSynchronize(stream), "clearing flags"));
  if (status.ok()) {
    flags_ = static_cast<uint32_t*>(memory);
  } else {
    ncclMemFree(memory);
  }
  return status;
}

absl::Status FlagMemory::Find(absl::Span<std::byte* const> blocks, absl::Span<const uint32_t> tokens,
                              cudaStream_t stream) {
  std::vector<const uint32_t*> at_peers;
  for (std::byte* const block : blocks) at_peers.push_back(reinterpret_cast<uint32_t*>(block) + set_flags_.size());
  REPRISE_RETURN_IF_ERROR(CheckTokens(at_peers, tokens, stream));
  const size_t words = PeerFlags::kFlagsPerRank * static_cast<size_t>(place_.size());
  for (size_t l = 0; l < lanes_.size(); ++l) {
    lanes_[l].rank = place_.rank();
    lanes_[l].set = flags_ + set_flags_.size() - 1;
    for (std::byte* const block : blocks) lanes_[l].blocks.push_back(reinterpret_cast<uint32_t*>(block) + l * words);
  }
  return absl::OkStatus();
}

void FlagMemory::SetAll() {
  cudaMemcpyAsync(flags_, set_flags_.data(), set_flags_.size() * sizeof(uint32_t), cudaMemcpyHostToDevice,
                  stream_.get());
}

void FlagMemory::Abandon() {
  flags_ = nullptr;
  stream_.Abandon();
}

}  // namespace reprise::internal
