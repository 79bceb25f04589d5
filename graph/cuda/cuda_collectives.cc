#include "graph/cuda/cuda_collectives.h"

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/command_uses.h"
#include "graph/cuda/cuda_memory.h"
#include "graph/cuda/nccl_status.h"
#include "graph/cuda/norm_sums.h"
#include "graph/cuda/peer_copies.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/control_block.h"
#include "reprise/core/status_macros.h"
#include "reprise/kernels/step.h"

namespace reprise::internal {
namespace {

absl::StatusOr<ncclDataType_t> NcclType(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kInt32:
      return ncclInt32;
    case DType::kUInt8:
      return ncclUint8;
  }
  return absl::InternalError("unknown dtype");
}

// The calls in between become one operation. An error in between still ends the group.
template <class Body>
absl::Status InGroup(ncclComm_t communicator, const Body& body) {
  REPRISE_RETURN_IF_ERROR(NcclStatus(ncclGroupStart(), "starting a group of collectives", communicator));
  const absl::Status status = body();
  const absl::Status end = NcclStatus(ncclGroupEnd(), "enqueueing a group of collectives", communicator);
  return status.ok() ? end : status;
}

class Collectives {
 public:
  Collectives(CudaRank& rank, const Bindings& bindings, const ScheduledCommand& command)
      : rank_(rank),
        bindings_(bindings),
        command_(command),
        uses_(bindings, /*local=*/0, command),
        stream_(rank.lanes().lane_stream(command.lane)) {}

  absl::Status operator()(const AllGather& gather) const {
    if (gather.transport == Transport::kCopyEngine) return CopyGather(gather);
    return InGroup(communicator(), [&] {
      return ForEachGroup(
          gather.unit, Role::kGathered, [&](const FlatGroup& group, const BufferUse& gathered) -> absl::Status {
            REPRISE_ASSIGN_OR_RETURN(const void* const shard,
                                     uses_.Address<const std::byte>(Role::kShard, gathered.id));
            REPRISE_ASSIGN_OR_RETURN(const ncclDataType_t type, NcclType(group.dtype));
            return NcclStatus(
                ncclAllGather(shard, uses_.Pointer<void>(gathered), Count(group), type, communicator(), stream_),
                "ncclAllGather", communicator());
          });
    });
  }

  absl::Status operator()(const ReduceScatter& reduce) const {
    if (reduce.transport == Transport::kCopyEngine) return CopyExchange(reduce);
    return InGroup(communicator(), [&] {
      return ForEachGroup(
          reduce.unit, Role::kReceived, [&](const FlatGroup& group, const BufferUse& received) -> absl::Status {
            REPRISE_ASSIGN_OR_RETURN(const std::byte* const from,
                                     uses_.Address<const std::byte>(Role::kWire, received.id));
            REPRISE_ASSIGN_OR_RETURN(const ncclDataType_t type, NcclType(bindings_.plan->wire(group)));
            if (reduce.sum == Sum::kNccl) {
              return NcclStatus(ncclReduceScatter(from, uses_.Pointer<void>(received), Count(group), type, ncclSum,
                                                  communicator(), stream_),
                                "ncclReduceScatter", communicator());
            }
            return ForEachPeer([&](int peer) -> absl::Status {
              const int64_t part = WireBytes(group);
              REPRISE_RETURN_IF_ERROR(
                  NcclStatus(ncclSend(from + peer * part, Count(group), type, peer, communicator(), stream_),
                             "ncclSend", communicator()));
              return NcclStatus(ncclRecv(uses_.Pointer<std::byte>(received) + PlaceOfPart(peer, rank_.rank()) * part,
                                         Count(group), type, peer, communicator(), stream_),
                                "ncclRecv", communicator());
            });
          });
    });
  }

  absl::Status operator()(const SumNorm&) const {
    REPRISE_ASSIGN_OR_RETURN(const BufferUse partials, uses_.First(Role::kNormPartials));
    REPRISE_ASSIGN_OR_RETURN(const ControlBlock* const control, uses_.Address<const ControlBlock>(Role::kControl));
    REPRISE_ASSIGN_OR_RETURN(StepState* const state, uses_.Address<StepState>(Role::kStepState));
    REPRISE_ASSIGN_OR_RETURN(NormPart* const mine, uses_.Address<NormPart>(Role::kNormParts));
    NormPart* const all = mine + 1;
    REPRISE_RETURN_IF_ERROR(kernels::CudaStatus(
        LaunchNormPart(stream_, uses_.Pointer<const double>(partials),
                       partials.num_bytes / static_cast<int64_t>(sizeof(double)), control, state, mine),
        "adding up the norm's parts"));
    REPRISE_RETURN_IF_ERROR(NcclStatus(ncclAllGather(mine, all, sizeof(NormPart), ncclUint8, communicator(), stream_),
                                       "ncclAllGather", communicator()));
    return kernels::FinishNorm(rank_.lanes().stream(command_.lane), control, state, all, rank_.size());
  }

  template <class Other>
  absl::Status operator()(const Other&) const {
    return absl::InternalError(
        absl::StrCat(Describe(*bindings_.plan, command_.command), " is not a collective of NCCL's"));
  }

 private:
  // A rank's own part is copied by the device's multiprocessors, before the others are there: such a copy starts
  // together with the compute command beside it, and later it would find every multiprocessor taken by a persistent
  // GEMM until that ends.
  absl::Status CopyGather(const AllGather& gather) const {
    std::vector<PeerCopy> own_copies, copies;
    REPRISE_RETURN_IF_ERROR(ForEachGroup(
        gather.unit, Role::kGathered, [&](const FlatGroup& group, const BufferUse& gathered) -> absl::Status {
          REPRISE_ASSIGN_OR_RETURN(const std::byte* const shard,
                                   uses_.Address<const std::byte>(Role::kShard, gathered.id));
          const int64_t part = group.shard_elements * SizeOf(group.dtype);
          std::byte* const own = uses_.Pointer<std::byte>(gathered) + rank_.rank() * part;
          own_copies.push_back({.to = own, .from = shard, .num_bytes = part});
          return ForEachPeer([&](int peer) -> absl::Status {
            REPRISE_ASSIGN_OR_RETURN(std::byte* const to, AtPeer(own, peer));
            copies.push_back({.to = to, .from = shard, .num_bytes = part});
            return absl::OkStatus();
          });
        }));
    REPRISE_RETURN_IF_ERROR(Copy(own_copies, stream_));
    return CopyToOthers(copies);
  }

  absl::Status CopyExchange(const ReduceScatter& reduce) const {
    std::vector<PeerCopy> copies;
    REPRISE_RETURN_IF_ERROR(ForEachGroup(
        reduce.unit, Role::kReceived, [&](const FlatGroup& group, const BufferUse& received) -> absl::Status {
          REPRISE_ASSIGN_OR_RETURN(const std::byte* const from,
                                   uses_.Address<const std::byte>(Role::kWire, received.id));
          const int64_t part = WireBytes(group);
          return ForEachPeer([&](int peer) -> absl::Status {
            std::byte* const place = uses_.Pointer<std::byte>(received) + PlaceOfPart(rank_.rank(), peer) * part;
            REPRISE_ASSIGN_OR_RETURN(std::byte* const to, AtPeer(place, peer));
            copies.push_back({.to = to, .from = from + peer * part, .num_bytes = part});
            return absl::OkStatus();
          });
        }));
    return CopyToOthers(copies);
  }

  absl::Status CopyToOthers(const std::vector<PeerCopy>& copies) const {
    const PeerFlags& flags = rank_.communicators().peer_flags(command_.lane);
    if (rank_.size() > 1 && flags.size() != rank_.size()) {
      return absl::InternalError(absl::StrCat(Describe(*bindings_.plan, command_.command), ": there are flags of ",
                                              flags.size(), " ranks of ", rank_.size(), "; see PrepareTransport"));
    }
    return CopyToPeers(rank_.driver(), flags, copies, stream_);
  }

  // What lies at `mine` on this rank, on another.
  absl::StatusOr<std::byte*> AtPeer(const void* mine, int peer) const {
    for (const std::shared_ptr<MemoryBlock>& block : bindings_.memory) {
      if (std::byte* const address = PeerAddress(*block, mine, peer)) return address;
    }
    return absl::InternalError(absl::StrCat(Describe(*bindings_.plan, command_.command),
                                            ": its memory is not open to rank ", peer, "; see PrepareTransport"));
  }
  int64_t WireBytes(const FlatGroup& group) const { return group.shard_elements * SizeOf(bindings_.plan->wire(group)); }

  ncclComm_t communicator() const { return rank_.communicators().at(command_.lane); }
  static size_t Count(const FlatGroup& group) { return static_cast<size_t>(group.shard_elements); }

  // From the next rank on, so that not all ranks copy to one at a time.
  template <class Body>
  absl::Status ForEachPeer(const Body& body) const {
    for (int i = 1; i < rank_.size(); ++i) REPRISE_RETURN_IF_ERROR(body((rank_.rank() + i) % rank_.size()));
    return absl::OkStatus();
  }
  template <class Body>
  absl::Status ForEachGroup(UnitId unit, Role role, const Body& body) const {
    for (const BufferUse& use : uses_.All(role)) {
      const FlatGroup& group = GroupAt(unit, use.id);
      if (group.shard_elements > 0) REPRISE_RETURN_IF_ERROR(body(group, use));
    }
    return absl::OkStatus();
  }

  const FlatGroup& GroupAt(UnitId unit, int32_t group) const {
    return bindings_.plan->layout.units[unit.value()].groups[group];
  }

  CudaRank& rank_;
  const Bindings& bindings_;
  const ScheduledCommand& command_;
  const CommandUses uses_;
  const cudaStream_t stream_;
};

}  // namespace

absl::Status LaunchCollective(CudaRank& rank, const Bindings& bindings, const ScheduledCommand& command) {
  return std::visit(Collectives(rank, bindings, command), command.command);
}

}  // namespace reprise::internal
