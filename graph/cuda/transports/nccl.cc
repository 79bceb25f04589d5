// Transport::kNccl: NCCL's collectives on any memory.
#include <memory>

#include "graph/cuda/cuda_memory.h"
#include "graph/cuda/transports/nccl_calls.h"
#include "graph/cuda/transports/transport.h"

namespace reprise::internal {
namespace {

// Of another session, or another transport.
bool HasWindows(const Bindings& bindings) {
  for (size_t b = 0; b < bindings.plan->buffers.size(); ++b) {
    const Buffer& buffer = bindings.plan->buffers[b];
    if (buffer.storage != Storage::kCommunicating || buffer.num_bytes == 0) continue;
    const std::byte* const address = bindings.addresses[0][b];
    for (const std::shared_ptr<MemoryBlock>& block : bindings.memory) {
      const std::byte* const begin = block->address(0);
      if (address >= begin && address < begin + block->num_bytes()) return HasWindow(*block);
    }
  }
  return false;
}

class Nccl final : public DeviceTransport {
 public:
  absl::Status Prepare(CudaRank& rank, const Bindings& bindings, const TransportUse& use, Vote) const override {
    // In windows NCCL takes kernels for them, whatever they were opened for.
    if (use.beside_windows || HasWindows(bindings)) rank.communicators().AllowEndlessWaits();
    return absl::OkStatus();
  }
  absl::Status Gather(const CollectiveLane& lane, absl::Span<const Parts> parts) const override {
    return NcclGather(lane, parts);
  }
  absl::Status Exchange(const CollectiveLane& lane, absl::Span<const Parts> parts, Sum sum) const override {
    switch (sum) {
      case Sum::kRankOrder:
        return NcclSendAndReceive(lane, parts);
      case Sum::kNccl:
        return NcclReduceScatter(lane, parts);
    }
    return absl::InternalError("unknown sum");
  }
};

}  // namespace

const DeviceTransport& NcclTransport() {
  static const Nccl transport;
  return transport;
}

}  // namespace reprise::internal
