#include "graph/cuda/cuda_collectives.h"

#include "absl/strings/str_cat.h"
#include "graph/command_uses.h"
#include "graph/cuda/cuda_transport.h"
#include "graph/cuda/nccl_status.h"
#include "graph/cuda/norm_sums.h"
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
        stream_(rank.lane_stream(command.lane)) {}

  absl::Status operator()(const AllGather& gather) const {
    const Transport transport = bindings_.plan->options.transport;
    return ForEachGroup(
        transport, gather.unit, Role::kGathered,
        [&](const FlatGroup& group, const BufferUse& gathered) -> absl::Status {
          REPRISE_ASSIGN_OR_RETURN(const void* shard, uses_.Address<const std::byte>(Role::kShard, gathered.id));
          REPRISE_ASSIGN_OR_RETURN(const ncclDataType_t type, NcclType(group.dtype));
          if (transport == Transport::kCopyEngine) {
            REPRISE_ASSIGN_OR_RETURN(shard, CopyOwnPart(group, shard, uses_.Pointer<std::byte>(gathered)));
          }
          return NcclStatus(ncclAllGather(shard, uses_.Pointer<void>(gathered), Count(group), type,
                                          CommunicatorOf(transport), stream_),
                            "ncclAllGather", CommunicatorOf(transport));
        });
  }

  absl::Status operator()(const ReduceScatter& reduce) const {
    const Plan& plan = *bindings_.plan;
    const std::vector<int64_t> offsets = WireOffsets(plan, reduce.unit);
    const ncclComm_t communicator = CommunicatorOf(reduce.transport);
    return ForEachGroup(
        reduce.transport, reduce.unit, Role::kReceived,
        [&](const FlatGroup& group, const BufferUse& received) -> absl::Status {
          REPRISE_ASSIGN_OR_RETURN(const BufferUse wire, uses_.First(Role::kWire));
          const std::byte* const from = bindings_.addresses[0][wire.buffer.value()] + offsets[received.id];
          void* const to = uses_.Pointer<void>(received);
          REPRISE_ASSIGN_OR_RETURN(const ncclDataType_t type, NcclType(plan.wire(group)));
          if (reduce.transport == Transport::kDefault) {
            return NcclStatus(ncclReduceScatter(from, to, Count(group), type, ncclSum, communicator, stream_),
                              "ncclReduceScatter", communicator);
          }
          return NcclStatus(ncclAlltoAll(from, to, Count(group), type, communicator, stream_), "ncclAlltoAll",
                            communicator);
        });
  }

  absl::Status operator()(const SumNorm&) const {
    REPRISE_ASSIGN_OR_RETURN(const BufferUse partials, uses_.First(Role::kNormPartials));
    REPRISE_ASSIGN_OR_RETURN(StepState* const state, uses_.Address<StepState>(Role::kStepState));
    double* const mine = rank_.norm_sums();
    double* const all = mine + 2;
    REPRISE_RETURN_IF_ERROR(
        kernels::CudaStatus(LaunchNormSums(stream_, uses_.Pointer<const double>(partials),
                                           partials.num_bytes / static_cast<int64_t>(sizeof(double)), state, mine),
                            "adding up the norm's parts"));
    REPRISE_RETURN_IF_ERROR(
        NcclStatus(ncclAllGather(mine, all, 2, ncclFloat64, CommunicatorOf(Transport::kDefault), stream_),
                   "ncclAllGather", CommunicatorOf(Transport::kDefault)));
    return kernels::FinishNorm(rank_.stream(command_.lane), state, all, rank_.size());
  }

  template <class Other>
  absl::Status operator()(const Other&) const {
    return absl::InternalError(
        absl::StrCat(Describe(*bindings_.plan, command_.command), " is not a collective of NCCL's"));
  }

 private:
  ncclComm_t CommunicatorOf(Transport transport) const {
    // A rank alone has no other ones.
    return rank_.communicator(command_.lane, rank_.size() == 1 ? CtaPolicy::kKernels : CtaPolicyOf(transport));
  }
  static size_t Count(const FlatGroup& group) { return static_cast<size_t>(group.shard_elements); }

  // Copies this rank's part to its place, from where the collective may send it, and returns that place. A copy within
  // a device runs on its multiprocessors: before NCCL's handshake it starts together with the compute command beside
  // it, and after it would find every multiprocessor taken by a persistent matrix product until that ends.
  absl::StatusOr<const void*> CopyOwnPart(const FlatGroup& group, const void* shard, std::byte* gathered) const {
    const int64_t num_bytes = group.shard_elements * SizeOf(group.dtype);
    std::byte* const own = gathered + rank_.rank() * num_bytes;
    REPRISE_RETURN_IF_ERROR(kernels::CudaStatus(
        cudaMemcpyAsync(own, shard, static_cast<size_t>(num_bytes), cudaMemcpyDeviceToDevice, stream_),
        "copying a rank's own part"));
    return own;
  }

  // One operation for all groups of the unit where NCCL's kernels fuse them; copy engines take one after another.
  template <class Body>
  absl::Status ForEachGroup(Transport transport, UnitId unit, Role role, const Body& body) const {
    const auto all = [&]() -> absl::Status {
      for (const BufferUse& use : uses_.All(role)) {
        const FlatGroup& group = GroupAt(unit, use.id);
        if (group.shard_elements > 0) REPRISE_RETURN_IF_ERROR(body(group, use));
      }
      return absl::OkStatus();
    };
    return transport == Transport::kCopyEngine ? all() : InGroup(CommunicatorOf(transport), all);
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
