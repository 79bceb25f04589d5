#include "graph/cuda/cuda_collectives.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/command_uses.h"
#include "graph/cuda/norm_sums.h"
#include "graph/cuda/transports/transport.h"
#include "graph/launch_command.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/control_block.h"
#include "reprise/core/status_macros.h"
#include "reprise/kernels/step.h"

namespace reprise::internal {
namespace {

class Collectives {
 public:
  Collectives(CudaRank& rank, const Bindings& bindings, const ScheduledCommand& command)
      : bindings_(bindings),
        command_(command),
        uses_(bindings, /*local=*/0, command),
        lane_({.rank = rank, .bindings = bindings, .lane = command.lane}) {}

  absl::Status operator()(const AllGather& gather) const {
    REPRISE_ASSIGN_OR_RETURN(const DeviceTransport* const transport, Find(gather.transport));
    std::vector<Parts> parts;
    for (const BufferUse& gathered : uses_.All(Role::kGathered)) {
      const FlatGroup& group = GroupAt(gather.unit, gathered.id);
      if (group.shard_elements == 0) continue;
      REPRISE_ASSIGN_OR_RETURN(const std::byte* const shard, uses_.Address<const std::byte>(Role::kShard, gathered.id));
      parts.push_back({shard, uses_.Pointer<std::byte>(gathered), group.shard_elements, group.dtype});
    }
    return transport->Gather(lane_, parts);
  }

  absl::Status operator()(const ReduceScatter& reduce) const {
    REPRISE_ASSIGN_OR_RETURN(const DeviceTransport* const transport, Find(reduce.transport));
    if (reduce.sum == Sum::kNccl && !TraitsOf(reduce.transport).adds)
      return Refuse("is by a transport that cannot add");
    std::vector<Parts> parts;
    for (const BufferUse& received : uses_.All(Role::kReceived)) {
      const FlatGroup& group = GroupAt(reduce.unit, received.id);
      if (group.shard_elements == 0) continue;
      REPRISE_ASSIGN_OR_RETURN(const std::byte* const reduce_buffer,
                               uses_.Address<const std::byte>(Role::kReduceBuffer, received.id));
      parts.push_back({reduce_buffer, uses_.Pointer<std::byte>(received), group.shard_elements,
                       bindings_.plan->reduce_dtype(group)});
    }
    return transport->Exchange(lane_, parts, reduce.sum);
  }

  absl::Status operator()(const SumNorm&) const {
    REPRISE_ASSIGN_OR_RETURN(const BufferUse partials, uses_.First(Role::kNormPartials));
    REPRISE_ASSIGN_OR_RETURN(const ControlBlock* const control, uses_.Address<const ControlBlock>(Role::kControl));
    REPRISE_ASSIGN_OR_RETURN(StepState* const state, uses_.Address<StepState>(Role::kStepState));
    REPRISE_ASSIGN_OR_RETURN(NormPart* const mine, uses_.Address<NormPart>(Role::kNormParts));
    NormPart* const all = mine + 1;
    REPRISE_RETURN_IF_ERROR(kernels::CudaStatus(
        LaunchNormPart(lane_.stream(), uses_.Pointer<const double>(partials),
                       partials.num_bytes / static_cast<int64_t>(sizeof(double)), control, state, mine),
        "adding up the norm's parts"));
    const Parts parts = {reinterpret_cast<const std::byte*>(mine), reinterpret_cast<std::byte*>(all), sizeof(NormPart),
                         DType::kUInt8};
    REPRISE_RETURN_IF_ERROR(NcclTransport().Gather(lane_, {&parts, 1}));
    return kernels::FinishNorm(lane_.rank.lanes().stream(command_.lane), control, state, all, lane_.rank.size());
  }

  template <OneRankCommand Command>
  absl::Status operator()(const Command&) const {
    return Refuse("is not a collective");
  }

 private:
  absl::Status Refuse(absl::string_view why) const {
    return absl::InternalError(absl::StrCat(Describe(*bindings_.plan, command_.command), " ", why));
  }
  absl::StatusOr<const DeviceTransport*> Find(Transport transport) const {
    const DeviceTransport* const found = FindTransport(transport);
    if (found == nullptr) return Refuse("is by a transport that does not exist");
    return found;
  }
  const FlatGroup& GroupAt(UnitId unit, int32_t group) const {
    return bindings_.plan->layout.units[unit.value()].groups[group];
  }

  const Bindings& bindings_;
  const ScheduledCommand& command_;
  const CommandUses uses_;
  const CollectiveLane lane_;
};

}  // namespace

absl::Status LaunchCollective(CudaRank& rank, const Bindings& bindings, const ScheduledCommand& command) {
  return std::visit(Collectives(rank, bindings, command), command.command);
}

}  // namespace reprise::internal
