#include "graph/cuda/cuda_collectives.h"

#include "absl/strings/str_cat.h"
#include "graph/command_uses.h"
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
        stream_(rank.lane_stream(command.lane)),
        communicator_(rank.communicator(command.lane)) {}

  absl::Status operator()(const AllGather& gather) const {
    return InGroup(communicator_, [&]() -> absl::Status {
      for (const BufferUse& gathered : uses_.All(Role::kGathered)) {
        const FlatGroup& group = GroupAt(gather.unit, gathered.id);
        if (group.shard_elements == 0) continue;
        REPRISE_ASSIGN_OR_RETURN(const void* const shard, uses_.Address<const std::byte>(Role::kShard, gathered.id));
        REPRISE_ASSIGN_OR_RETURN(const ncclDataType_t type, NcclType(group.dtype));
        REPRISE_RETURN_IF_ERROR(
            NcclStatus(ncclAllGather(shard, uses_.Pointer<void>(gathered), static_cast<size_t>(group.shard_elements),
                                     type, communicator_, stream_),
                       "ncclAllGather", communicator_));
      }
      return absl::OkStatus();
    });
  }

  absl::Status operator()(const ReduceScatter& reduce) const {
    const Plan& plan = *bindings_.plan;
    const std::vector<int64_t> offsets = WireOffsets(plan, reduce.unit);
    return InGroup(communicator_, [&]() -> absl::Status {
      for (const BufferUse& received : uses_.All(Role::kReceived)) {
        const FlatGroup& group = GroupAt(reduce.unit, received.id);
        if (group.shard_elements == 0) continue;
        REPRISE_ASSIGN_OR_RETURN(const BufferUse wire, uses_.First(Role::kWire));
        const std::byte* const from = bindings_.addresses[0][wire.buffer.value()] + offsets[received.id];
        REPRISE_ASSIGN_OR_RETURN(const ncclDataType_t type, NcclType(plan.wire(group)));
        REPRISE_RETURN_IF_ERROR(
            NcclStatus(ncclReduceScatter(from, uses_.Pointer<void>(received), static_cast<size_t>(group.shard_elements),
                                         type, ncclSum, communicator_, stream_),
                       "ncclReduceScatter", communicator_));
      }
      return absl::OkStatus();
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
        NcclStatus(ncclAllGather(mine, all, 2, ncclFloat64, communicator_, stream_), "ncclAllGather", communicator_));
    return kernels::FinishNorm(rank_.stream(command_.lane), state, all, rank_.size());
  }

  template <class Other>
  absl::Status operator()(const Other&) const {
    return absl::InternalError(
        absl::StrCat(Describe(*bindings_.plan, command_.command), " is not a collective of NCCL's"));
  }

 private:
  const FlatGroup& GroupAt(UnitId unit, int32_t group) const {
    return bindings_.plan->layout.units[unit.value()].groups[group];
  }

  CudaRank& rank_;
  const Bindings& bindings_;
  const ScheduledCommand& command_;
  const CommandUses uses_;
  const cudaStream_t stream_;
  const ncclComm_t communicator_;
};

}  // namespace

absl::Status CheckTransports(const Plan& plan) {
  for (const Schedule& schedule : plan.schedules) {
    for (const ScheduledCommand& command : schedule.commands) {
      const ReduceScatter* const reduce = std::get_if<ReduceScatter>(&command.command);
      if (reduce == nullptr || reduce->transport == Transport::kDefault) continue;
      return absl::UnavailableError(
          absl::StrCat(Describe(plan, command.command), " asks for the transport ", Name(reduce->transport),
                       ", which this world does not have; plan with ", Name(Transport::kDefault)));
    }
  }
  return absl::OkStatus();
}

absl::Status LaunchCollective(CudaRank& rank, const Bindings& bindings, const ScheduledCommand& command) {
  return std::visit(Collectives(rank, bindings, command), command.command);
}

}  // namespace reprise::internal
