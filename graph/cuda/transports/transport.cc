#include "graph/cuda/transports/transport.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "graph/cuda/cuda_memory.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {

const DeviceTransport* FindTransport(Transport transport) {
  switch (transport) {
    case Transport::kNccl:
      return &NcclTransport();
    case Transport::kSymmetric:
      return &SymmetricTransport();
    case Transport::kCopyEngine:
      return &CopyEngineTransport();
  }
  return nullptr;
}

TransportUse UseOf(const Plan& plan, Transport transport) {
  TransportUse use;
  for (size_t u = 0; u < plan.unit_policies.size(); ++u) {
    if (plan.layout.units[u].gathered_bytes == 0) continue;
    const UnitTransports& transports = plan.unit_policies[u].transports;
    const std::vector<BufferId>& accumulators = plan.unit_buffers[u].accumulators;
    const bool trains = std::any_of(accumulators.begin(), accumulators.end(), [](BufferId id) { return id.valid(); });
    use.gathers = use.gathers || transports.gather == transport;
    use.exchanges = use.exchanges || (trains && transports.exchange == transport);
  }
  return use;
}

absl::Status CollectiveLane::ForEachPeer(absl::FunctionRef<absl::Status(int peer)> body) const {
  for (int i = 1; i < rank.size(); ++i) REPRISE_RETURN_IF_ERROR(body((rank.rank() + i) % rank.size()));
  return absl::OkStatus();
}

absl::Status RegisterWindows(const Bindings& bindings, Lane lane) {
  for (const std::shared_ptr<MemoryBlock>& block : bindings.memory) {
    REPRISE_RETURN_IF_ERROR(RegisterWindow(block, lane));
  }
  return absl::OkStatus();
}

}  // namespace reprise::internal
