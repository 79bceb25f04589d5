// Transport::kSymmetric: NCCL's collectives in windows that all ranks have at the same offsets, which take few
// multiprocessors.
#include "graph/cuda/transports/nccl_calls.h"
#include "graph/cuda/transports/transport.h"

namespace reprise::internal {
namespace {

class Symmetric final : public DeviceTransport {
 public:
  absl::Status Prepare(CudaRank& rank, const Bindings& bindings, const TransportUse& use, Vote vote) const override {
    rank.communicators().AllowEndlessWaits();
    absl::Status windows;
    if (use.gathers) windows.Update(RegisterWindows(bindings, Lane::kAllGather));
    if (use.exchanges && windows.ok()) windows.Update(RegisterWindows(bindings, Lane::kReduceScatter));
    return vote("registering memory", windows);
  }
  absl::Status Gather(const CollectiveLane& lane, absl::Span<const Parts> parts) const override {
    return NcclGather(lane, parts);
  }
  absl::Status Exchange(const CollectiveLane& lane, absl::Span<const Parts> parts, Sum) const override {
    return NcclSendAndReceive(lane, parts);
  }
};

}  // namespace

const DeviceTransport& SymmetricTransport() {
  static const Symmetric transport;
  return transport;
}

}  // namespace reprise::internal
