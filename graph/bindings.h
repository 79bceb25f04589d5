// Addresses and code for a plan, bound once before recording.
#ifndef REPRISE_GRAPH_BINDINGS_H_
#define REPRISE_GRAPH_BINDINGS_H_

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "reprise/core/compute.h"
#include "reprise/core/plan.h"
#include "reprise/graph/optimizers.h"

namespace reprise::internal {

class FirstNonFinite;
class MemoryBlock;
class WriteDigests;

// By storage; null where nothing lies in it.
using StorageBlocks = std::array<std::shared_ptr<MemoryBlock>, kNumStorages>;

// Immutable once recording starts. `addresses[local][buffer]` is where a buffer of the plan lies on a local rank; null
// only for buffers of no bytes.
struct Bindings {
  std::shared_ptr<const Plan> plan;
  ComputeTable compute = {};
  Optimizer optimizer = AdamW{};
  float clip_norm = 0;  // of the divided gradient; 0: no clipping
  // Eager: check what compute functions write, see RunOptions::check_writes. They then run two or more times.
  bool check_writes = false;
  bool check_captured = false;  // with check_writes, on devices: the last of these runs is of captured work
  int64_t scratch_guard = 0;    // with check_writes: bytes after each scratch buffer that are nobody's
  // What checked eager replays found, for as many of Executable::CheckReplay, in the same order. May be null.
  std::shared_ptr<WriteDigests> write_digests = nullptr;
  // Eager: reports the first value that is not finite. May be null.
  std::shared_ptr<FirstNonFinite> non_finite = nullptr;
  std::vector<int> ranks = {};  // World::local_ranks()
  std::vector<std::vector<std::byte*>> addresses = {};
  std::vector<std::shared_ptr<MemoryBlock>> memory = {};  // kept alive

  // Fills in addresses of all buffers but external ones, for `ranks`, and keeps the blocks.
  void Place(const StorageBlocks& blocks);

  // `local` is an index into `ranks`, and the use is of `plan`.
  std::byte* address(int local, const BufferUse& use) const {
    std::byte* base = addresses[local][use.buffer.value()];
    return base == nullptr ? nullptr : base + use.offset;
  }
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_BINDINGS_H_
