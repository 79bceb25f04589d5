// Transport::kCopyEngine: each rank copies its parts to the others' memory by copy engines, see peer_copies.h.
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/cuda/cuda_memory.h"
#include "graph/cuda/peer_copies.h"
#include "graph/cuda/transports/transport.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// What lies at `mine` on this rank, on another.
absl::StatusOr<std::byte*> AtPeer(const CollectiveLane& lane, const void* mine, int peer) {
  for (const std::shared_ptr<MemoryBlock>& block : lane.bindings.memory) {
    if (std::byte* const address = PeerAddress(*block, mine, peer)) return address;
  }
  return absl::InternalError(absl::StrCat("memory is not open to rank ", peer, "; see PrepareTransports"));
}

absl::Status CopyToOthers(const CollectiveLane& lane, const std::vector<PeerCopy>& copies) {
  const CudaRank& rank = lane.rank;
  const PeerFlags& flags = rank.communicators().peer_flags(lane.lane);
  if (rank.size() > 1 && flags.size() != rank.size()) {
    return absl::InternalError(
        absl::StrCat("there are flags of ", flags.size(), " ranks of ", rank.size(), "; see PrepareTransports"));
  }
  return CopyToPeers(rank.driver(), flags, copies, lane.stream());
}

class CopyEngine final : public DeviceTransport {
 public:
  // The all-gather lane's windows tell where the other ranks' memory is; no collective runs in them.
  absl::Status Prepare(CudaRank& rank, const Bindings& bindings, const TransportUse&, Vote vote) const override {
    REPRISE_RETURN_IF_ERROR(vote("registering memory", RegisterWindows(bindings, Lane::kAllGather)));
    rank.communicators().AllowPeerCopies();
    absl::Status addresses;
    for (const std::shared_ptr<MemoryBlock>& block : bindings.memory) {
      if (addresses.ok()) addresses = FindPeers(*block);
    }
    return vote("finding the other ranks' memory", addresses);
  }

  // A rank's own part is copied by the device's multiprocessors, before the others are there: such a copy starts
  // together with the compute command beside it, and later it would find every multiprocessor taken by a persistent
  // GEMM until that ends.
  absl::Status Gather(const CollectiveLane& lane, absl::Span<const Parts> parts) const override {
    std::vector<PeerCopy> own_copies, copies;
    for (const Parts& part : parts) {
      std::byte* const own = part.to + lane.rank.rank() * part.part_bytes();
      own_copies.push_back({.to = own, .from = part.from, .num_bytes = part.part_bytes()});
      REPRISE_RETURN_IF_ERROR(lane.ForEachPeer([&](int peer) -> absl::Status {
        REPRISE_ASSIGN_OR_RETURN(std::byte* const to, AtPeer(lane, own, peer));
        copies.push_back({.to = to, .from = part.from, .num_bytes = part.part_bytes()});
        return absl::OkStatus();
      }));
    }
    REPRISE_RETURN_IF_ERROR(Copy(own_copies, lane.stream()));
    return CopyToOthers(lane, copies);
  }

  absl::Status Exchange(const CollectiveLane& lane, absl::Span<const Parts> parts, Sum) const override {
    std::vector<PeerCopy> copies;
    for (const Parts& part : parts) {
      REPRISE_RETURN_IF_ERROR(lane.ForEachPeer([&](int peer) -> absl::Status {
        std::byte* const place = part.to + PlaceOfPart(lane.rank.rank(), peer) * part.part_bytes();
        REPRISE_ASSIGN_OR_RETURN(std::byte* const to, AtPeer(lane, place, peer));
        copies.push_back({.to = to, .from = part.from + peer * part.part_bytes(), .num_bytes = part.part_bytes()});
        return absl::OkStatus();
      }));
    }
    return CopyToOthers(lane, copies);
  }
};

}  // namespace

const DeviceTransport& CopyEngineTransport() {
  static const CopyEngine transport;
  return transport;
}

}  // namespace reprise::internal
