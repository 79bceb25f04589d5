#include "graph/launch_command.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/command_uses.h"
#include "graph/compute_binding.h"
#include "reprise/core/control_block.h"
#include "reprise/core/status_macros.h"
#include "reprise/kernels/accumulate.h"
#include "reprise/kernels/adamw.h"
#include "reprise/kernels/cast.h"
#include "reprise/kernels/pack.h"
#include "reprise/kernels/sgd.h"
#include "reprise/kernels/step.h"

namespace reprise::internal {
namespace {

// Launches one command on one rank: one overload for each kind.
class Launcher {
 public:
  Launcher(const Bindings& bindings, int local, const ScheduledCommand& command, Stream stream)
      : bindings_(bindings),
        plan_(*bindings.plan),
        local_(local),
        command_(command),
        uses_(bindings, local, command),
        stream_(stream) {}

  absl::Status operator()(const Begin&) const { return absl::OkStatus(); }
  absl::Status operator()(const End&) const { return absl::OkStatus(); }
  absl::Status operator()(const AllGather&) const { return RefuseCollective(); }
  absl::Status operator()(const ReduceScatter&) const { return RefuseCollective(); }
  absl::Status operator()(const SumNorm&) const { return RefuseCollective(); }

  absl::Status operator()(const NextMicrobatch& next) const {
    REPRISE_ASSIGN_OR_RETURN(ControlBlock* const control, uses_.Address<ControlBlock>(Role::kControl));
    return kernels::NextMicrobatch(stream_, control, next.count);
  }

  absl::Status operator()(const StageInputs& stage) const {
    REPRISE_ASSIGN_OR_RETURN(const ControlBlock* const control, uses_.Address<ControlBlock>(Role::kControl));
    for (const BufferUse& staging : uses_.All(Role::kStaging)) {
      REPRISE_ASSIGN_OR_RETURN(const BufferUse input, uses_.First(Role::kInput, staging.id));
      const int64_t stride = (input.num_bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
      REPRISE_RETURN_IF_ERROR(kernels::StageInput(stream_, {.control = control,
                                                            .position = stage.position,
                                                            .slots = stage.slots,
                                                            .staging = uses_.Pointer<const std::byte>(staging),
                                                            .slot_stride = stride,
                                                            .num_bytes = input.num_bytes,
                                                            .destination = uses_.Pointer<std::byte>(input)}));
    }
    return absl::OkStatus();
  }

  absl::Status operator()(const Forward& forward) const {
    return RunCompute(bindings_, local_, command_, {forward.call, Phase::kForward, forward.position}, stream_);
  }
  absl::Status operator()(const Backward& backward) const {
    return RunCompute(bindings_, local_, command_, {backward.call, Phase::kBackward, backward.position}, stream_);
  }

  absl::Status operator()(const PackGradients& pack) const {
    for (const BufferUse& gradient : uses_.All(Role::kParameterGradient)) {
      const ParameterId parameter(gradient.id);
      const ParameterPlace& place = plan_.layout.parameters[gradient.id];
      REPRISE_ASSIGN_OR_RETURN(std::byte* const reduce_buffer,
                               uses_.Address<std::byte>(Role::kReduceBuffer, place.group));
      const DType reduce_dtype = plan_.reduce_dtype(GroupAt(pack.unit, place.group));
      const int64_t elements = NumElements(plan_.model.parameter(parameter).spec.shape);
      REPRISE_RETURN_IF_ERROR(
          kernels::Pack(stream_, {.gradient_dtype = GradientDType(plan_, parameter),
                                  .gradient = uses_.Pointer<const void>(gradient),
                                  .columns = elements,
                                  .row_stride = elements,
                                  .reduce_dtype = reduce_dtype,
                                  .reduce_buffer = reduce_buffer + place.first_element * SizeOf(reduce_dtype)}));
    }
    return absl::OkStatus();
  }

  absl::Status operator()(const Accumulate& accumulate) const {
    REPRISE_ASSIGN_OR_RETURN(const ControlBlock* const control, uses_.Address<ControlBlock>(Role::kControl));
    const int rank = bindings_.ranks[local_];
    for (const BufferUse& accumulator : uses_.All(Role::kAccumulator)) {
      const int32_t id = accumulator.id;
      const FlatGroup& group = GroupAt(accumulate.unit, id);
      REPRISE_ASSIGN_OR_RETURN(const void* const received, uses_.Address<const void>(Role::kReceived, id));
      kernels::ReduceAccumulateArguments arguments = {.control = control,
                                                      .position = accumulate.position,
                                                      .mode = accumulate.mode,
                                                      .reduce_dtype = plan_.reduce_dtype(group),
                                                      .parts = received,
                                                      .num_parts = ReceivedParts(plan_, accumulate.sum),
                                                      .elements = group.shard_elements,
                                                      .beside_compute = accumulate.beside_compute};
      if (accumulate.sum == Sum::kRankOrder) {
        REPRISE_ASSIGN_OR_RETURN(const std::byte* const reduce_buffer,
                                 uses_.Address<const std::byte>(Role::kReduceBuffer, id));
        arguments.own = reduce_buffer + rank * group.shard_elements * SizeOf(plan_.reduce_dtype(group));
        arguments.own_place = rank;
      }
      arguments.accumulator = uses_.Pointer<float>(accumulator);
      REPRISE_ASSIGN_OR_RETURN(arguments.norm_partials, uses_.Address<double>(Role::kNormPartials, id));
      const int64_t shard = rank * group.shard_elements;
      for (const GroupSegment& segment : accumulate.segments) {
        const int64_t first = std::max<int64_t>(segment.first_element - shard, 0);
        const int64_t last = std::min(segment.first_element + segment.num_elements - shard, group.shard_elements);
        if (segment.group == id && first < last) arguments.segments.push_back({first, last - first});
      }
      REPRISE_RETURN_IF_ERROR(kernels::ReduceAccumulate(stream_, std::move(arguments)));
    }
    return absl::OkStatus();
  }

  absl::Status operator()(const RecordLoss&) const {
    REPRISE_ASSIGN_OR_RETURN(StepState* const step_state, uses_.Address<StepState>(Role::kStepState));
    REPRISE_ASSIGN_OR_RETURN(const float* const loss, uses_.Address<float>(Role::kOutput));
    return kernels::RecordLoss(stream_, step_state, loss);
  }

  absl::Status operator()(const UpdateParameters& update) const {
    REPRISE_ASSIGN_OR_RETURN(const ControlBlock* const control, uses_.Address<ControlBlock>(Role::kControl));
    REPRISE_ASSIGN_OR_RETURN(const StepState* const step_state, uses_.Address<StepState>(Role::kStepState));
    for (const BufferUse& master : uses_.All(Role::kMaster)) {
      kernels::UpdateArguments arguments = {.control = control,
                                            .step_state = step_state,
                                            .clip_norm = bindings_.clip_norm,
                                            .master_dtype = plan_.options.master_dtype,
                                            .master = uses_.Pointer<void>(master),
                                            .count = GroupAt(update.unit, master.id).shard_elements};
      REPRISE_ASSIGN_OR_RETURN(arguments.gradient_sum, uses_.Address<const float>(Role::kAccumulator, master.id));
      const std::vector<BufferUse> states = uses_.All(Role::kOptimizerState, master.id);
      const size_t needed = static_cast<size_t>(OptimizerStates(bindings_.optimizer));
      if (states.size() < needed) {
        return absl::FailedPreconditionError(absl::StrCat("the optimizer keeps ", needed,
                                                          " values per element, but the plan has room for ",
                                                          states.size(), "; plan with optimizer_states = ", needed));
      }
      REPRISE_RETURN_IF_ERROR(
          std::visit([&](const auto& optimizer) { return Update(optimizer, arguments, states); }, bindings_.optimizer));
    }
    return absl::OkStatus();
  }

  absl::Status operator()(const RefreshShards& refresh) const {
    for (const BufferUse& shard : uses_.All(Role::kShard)) {
      const FlatGroup& group = GroupAt(refresh.unit, shard.id);
      REPRISE_ASSIGN_OR_RETURN(const BufferUse master, uses_.First(Role::kMaster, shard.id));
      REPRISE_RETURN_IF_ERROR(kernels::Cast(stream_, plan_.options.master_dtype, uses_.Pointer<const void>(master),
                                            group.dtype, uses_.Pointer<void>(shard), group.shard_elements));
    }
    return absl::OkStatus();
  }

  absl::Status operator()(const PublishMetrics&) const {
    REPRISE_ASSIGN_OR_RETURN(const ControlBlock* const control, uses_.Address<ControlBlock>(Role::kControl));
    REPRISE_ASSIGN_OR_RETURN(StepState* const step_state, uses_.Address<StepState>(Role::kStepState));
    REPRISE_ASSIGN_OR_RETURN(MetricsRing* const ring, uses_.Address<MetricsRing>(Role::kMetrics));
    return kernels::PublishMetrics(stream_, control, step_state, ring, plan_.world_size());
  }

 private:
  const FlatGroup& GroupAt(UnitId unit, int32_t group) const { return plan_.layout.units[unit.value()].groups[group]; }

  static absl::Status RefuseCollective() {
    return absl::InternalError("a collective spans all ranks and cannot be launched for one of them");
  }

  absl::Status Update(const AdamW& optimizer, const kernels::UpdateArguments& update,
                      const std::vector<BufferUse>& states) const {
    return kernels::AdamW(stream_, {.update = update,
                                    .beta1 = optimizer.beta1,
                                    .beta2 = optimizer.beta2,
                                    .epsilon = optimizer.epsilon,
                                    .weight_decay = optimizer.weight_decay,
                                    .first_moment = uses_.Pointer<float>(states[0]),
                                    .second_moment = uses_.Pointer<float>(states[1])});
  }
  absl::Status Update(const Sgd& optimizer, const kernels::UpdateArguments& update,
                      const std::vector<BufferUse>& states) const {
    float* const velocity = optimizer.momentum != 0 ? uses_.Pointer<float>(states[0]) : nullptr;
    return kernels::Sgd(stream_, {.update = update,
                                  .momentum = optimizer.momentum,
                                  .weight_decay = optimizer.weight_decay,
                                  .velocity = velocity});
  }

  const Bindings& bindings_;
  const Plan& plan_;
  const int local_;
  const ScheduledCommand& command_;
  const CommandUses uses_;
  const Stream stream_;
};

}  // namespace

absl::Status LaunchCommand(const Bindings& bindings, int local, const ScheduledCommand& command, Stream stream) {
  return std::visit(Launcher(bindings, local, command, stream), command.command);
}

}  // namespace reprise::internal
