#include "graph/bindings.h"

#include "graph/machine.h"

namespace reprise::internal {

void Bindings::Place(const StorageBlocks& blocks) {
  for (const std::shared_ptr<MemoryBlock>& block : blocks) {
    if (block != nullptr) memory.push_back(block);
  }
  addresses.assign(ranks.size(), {});
  for (size_t local = 0; local < ranks.size(); ++local) {
    for (const Buffer& buffer : plan->buffers) {
      const std::shared_ptr<MemoryBlock>& block = blocks[static_cast<int>(buffer.storage)];
      std::byte* const base = block == nullptr ? nullptr : block->address(static_cast<int>(local));
      addresses[local].push_back(base == nullptr ? nullptr : base + buffer.offset);
    }
  }
}

}  // namespace reprise::internal
