// A world whose memory holds NaN when it is taken, as a HostWorld's does, and that knows how much of it still lives.
#ifndef REPRISE_TESTS_GRAPH_FOUNDING_WATCHED_WORLD_H_
#define REPRISE_TESTS_GRAPH_FOUNDING_WATCHED_WORLD_H_

#include <memory>
#include <utility>
#include <vector>

#include "reprise/core/status_macros.h"
#include "tests/graph/forwarding_world.h"

namespace reprise::testing {

class WatchedWorld : public ForwardingWorld {
 public:
  using ForwardingWorld::ForwardingWorld;

  // Of each local rank, in blocks that were not freed.
  int64_t live_bytes() const {
    int64_t bytes = 0;
    for (const std::weak_ptr<internal::MemoryBlock>& weak : blocks_) {
      if (const std::shared_ptr<internal::MemoryBlock> block = weak.lock()) bytes += block->num_bytes();
    }
    return bytes;
  }

  absl::StatusOr<std::shared_ptr<internal::MemoryBlock>> Allocate(internal::MemoryKind kind,
                                                                  int64_t num_bytes) override {
    REPRISE_ASSIGN_OR_RETURN(std::shared_ptr<internal::MemoryBlock> block, ForwardingWorld::Allocate(kind, num_bytes));
    blocks_.push_back(block);
    if (kind == internal::MemoryKind::kHostVisible) return block;  // no tensor lies there
    for (int local = 0; local < static_cast<int>(local_ranks().size()); ++local) {
      REPRISE_RETURN_IF_ERROR(FillBytes(local, block->address(local), 0xFF, num_bytes));
    }
    return block;
  }

 private:
  std::vector<std::weak_ptr<internal::MemoryBlock>> blocks_;
};

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_FOUNDING_WATCHED_WORLD_H_
