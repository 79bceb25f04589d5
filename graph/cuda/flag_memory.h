// This rank's flags for copies between ranks: memory that the other ranks write.
#ifndef REPRISE_GRAPH_CUDA_FLAG_MEMORY_H_
#define REPRISE_GRAPH_CUDA_FLAG_MEMORY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "graph/cuda/handles.h"
#include "graph/cuda/peer_copies.h"
#include "graph/cuda/rank_place.h"
#include "reprise/core/schedule.h"

namespace reprise::internal {

// Made, used and destroyed with its device current: see caller_state.h.
class FlagMemory {
 public:
  // Nothing is taken yet. `place` outlives this.
  explicit FlagMemory(const RankPlace& place) : place_(place) {}
  ~FlagMemory();

  // Unless that was done, takes memory of NCCL's for them, clear, and waits for the stream.
  absl::Status Take(cudaStream_t stream);
  void* address() const { return flags_; }
  int64_t num_bytes() const { return static_cast<int64_t>((set_flags_.size() + 1) * sizeof(uint32_t)); }
  // A word beside them, which the other ranks' devices read to see that it is this memory they reach.
  uint32_t token() const { return token_; }
  // After Take on all ranks: blocks[rank] and tokens[rank] are where this device sees address() of each rank, and its
  // token(). Unavailable if other words are there. Waits for the stream.
  absl::Status Find(absl::Span<std::byte* const> blocks, absl::Span<const uint32_t> tokens, cudaStream_t stream);
  // Of no ranks before Find.
  const PeerFlags& at(Lane lane) const { return lanes_[static_cast<size_t>(lane)]; }

  // Enqueues, on a stream of its own, that all are set: copies that wait for other ranks go on.
  void SetAll();
  // Leaves all to the device, which may still use it.
  void Abandon();

 private:
  const RankPlace& place_;
  uint32_t* flags_ = nullptr;        // of all lanes, then PeerFlags::set, then the token
  std::vector<uint32_t> set_flags_;  // what SetAll copies there: kSet for all flags, and PeerFlags::set as it is
  uint32_t token_ = 0;
  StreamHandle stream_;
  std::array<PeerFlags, kNumLanes> lanes_;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_FLAG_MEMORY_H_
