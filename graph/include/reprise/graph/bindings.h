// Addresses and code for a plan, bound once before recording.
#ifndef REPRISE_GRAPH_BINDINGS_H_
#define REPRISE_GRAPH_BINDINGS_H_

#include <cstddef>
#include <memory>
#include <variant>
#include <vector>

#include "reprise/core/compute.h"
#include "reprise/core/plan.h"

namespace reprise {

namespace internal {
class FirstNonFinite;
class MemoryBlock;
class WriteDigests;
}  // namespace internal

// Optimizers, applied to each rank's flat master shards by the step. The learning rate comes with each step.
struct AdamW {
  float beta1 = 0.9f, beta2 = 0.999f;
  float epsilon = 1e-8f;      // at least 1e-15
  float weight_decay = 0.0f;  // decoupled: master -= learning_rate * weight_decay * master
};
struct Sgd {
  float momentum = 0.0f;
  float weight_decay = 0.0f;  // added to the gradient
};
using Optimizer = std::variant<AdamW, Sgd>;
// fp32 values that it keeps per element.
int OptimizerStates(const Optimizer& optimizer);

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
  std::shared_ptr<internal::WriteDigests> write_digests = nullptr;
  // Eager: reports the first value that is not finite. May be null.
  std::shared_ptr<internal::FirstNonFinite> non_finite = nullptr;
  std::vector<int> ranks = {};  // World::local_ranks()
  std::vector<std::vector<std::byte*>> addresses = {};
  std::vector<std::shared_ptr<internal::MemoryBlock>> memory = {};  // kept alive

  // `local` is an index into `ranks`, and the use is of `plan`.
  std::byte* address(int local, const BufferUse& use) const {
    std::byte* base = addresses[local][use.buffer.value()];
    return base == nullptr ? nullptr : base + use.offset;
  }
};

}  // namespace reprise

#endif  // REPRISE_GRAPH_BINDINGS_H_
