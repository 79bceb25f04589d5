// Copies into other ranks' memory by copy engines, which take no multiprocessor. Two words for each other rank say when
// a rank's memory may be written and when it was: each is set by one rank and waited for and cleared by the other, so
// that a replay starts as the one before did.
#ifndef REPRISE_GRAPH_CUDA_PEER_COPIES_H_
#define REPRISE_GRAPH_CUDA_PEER_COPIES_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "graph/cuda/driver_api.h"

namespace reprise::internal {

// The flags of one lane. Every rank has a block of kFlagsPerRank x size words, zero at first.
struct PeerFlags {
  static constexpr int kFlagsPerRank = 2;
  static constexpr uint32_t kClear = 0, kSet = 1;

  int rank = 0;
  std::vector<uint32_t*> blocks = {};  // of each rank, by rank, as addresses of this rank's device
  const uint32_t* set = nullptr;       // kSet, on this rank's device

  int size() const { return static_cast<int>(blocks.size()); }
  // In the block of `owner`, set by `from`: that `from` may be written to, and that it has written.
  uint32_t* ready(int owner, int from) const { return blocks[static_cast<size_t>(owner)] + from; }
  uint32_t* written(int owner, int from) const { return blocks[static_cast<size_t>(owner)] + size() + from; }
};

struct PeerCopy {
  void* to = nullptr;  // in any rank's memory
  const void* from = nullptr;
  int64_t num_bytes = 0;
};

// Enqueues the copies; those of nothing are left out.
absl::Status Copy(absl::Span<const PeerCopy> copies, cudaStream_t stream);

// (c) Tells the other ranks that this rank's memory may be written to, waits until they all have told, copies, and
// waits until they all have copied: what they copy to this rank lies there for what the stream runs next. All ranks of
// the flags take part, with copies or without. Can be captured. While a rank is missing the stream waits; what sets
// this rank's block to kSet again and again until the stream ends makes it go on.
//
// A flag is set by a copy of one word: a batch of memory operations that writes another device's memory takes longer
// (two H200, parts of 4 MiB, 20 in a graph: 24.6 us each, of which 13.9 are the copy, instead of 27.2).
absl::Status CopyToPeers(const DriverApi& driver, const PeerFlags& flags, absl::Span<const PeerCopy> copies,
                         cudaStream_t stream);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_PEER_COPIES_H_
