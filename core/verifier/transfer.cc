#include "core/verifier/transfer.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "reprise/core/control_block.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

constexpr Value kControl = {.kind = ValueKind::kControl, .time = 1};  // after NextMicrobatch

Value StepStateOf(int64_t losses, int norm = 0) {
  return {.kind = ValueKind::kStepState, .index = norm, .time = losses};
}
Value GatheredOf(UnitId unit, int group) { return {ValueKind::kGathered, unit.value(), group}; }
Value ReceivedOf(UnitId unit, int group, int64_t microbatch) {
  return {ValueKind::kReceived, unit.value(), group, 0, microbatch};
}
// `step` is the schedule of that name: its sums end with what it calls microbatch 0.
constexpr int kStepTime = 0;

}  // namespace

absl::Status Transfer::Find(const Schedule& schedule, const Command& command) {
  schedule_ = &schedule;
  operands_.clear();
  pieces_.clear();
  return std::visit([&](const auto& c) { return Of(c); }, command);
}

// ---- operands ----

void Transfer::Add(Role role, int32_t id, Access access, int64_t num_bytes, BufferId home, int64_t home_offset) {
  const int end = static_cast<int>(pieces_.size());
  operands_.push_back({.role = role,
                       .id = id,
                       .access = access,
                       .num_bytes = num_bytes,
                       .home = home,
                       .home_offset = home_offset,
                       .first_before = end,
                       .first_after = end,
                       .end = end});
}

// Pieces before come before those after.
void Transfer::Before(const Piece& piece) {
  pieces_.push_back(piece);
  ++operands_.back().first_after;
  ++operands_.back().end;
}

void Transfer::After(const Piece& piece) {
  pieces_.push_back(piece);
  ++operands_.back().end;
}

void Transfer::Reads(Role role, int32_t id, int64_t num_bytes, const Value& before, int64_t from) {
  Add(role, id, Access::kRead, num_bytes);
  Before({0, num_bytes, before, from});
}

void Transfer::Assigns(Role role, int32_t id, int64_t num_bytes, const Value& after, BufferId home) {
  Add(role, id, Access::kAssign, num_bytes, home);
  After({0, num_bytes, after});
}

void Transfer::Updates(Role role, int32_t id, int64_t num_bytes, const Value& before, const Value& after,
                       BufferId home) {
  Add(role, id, Access::kUpdate, num_bytes, home);
  Before({0, num_bytes, before});
  After({0, num_bytes, after});
}

void Transfer::AlsoOfPeers(Transport transport, AxisId axis) {
  if (!TraitsOf(transport).writes_peers) return;
  Operand operand = operands_.back();
  operand.peers = axis;
  operand.first_before = operand.first_after = operand.end;  // what this rank has is what the others give it
  operands_.push_back(operand);
}

void Transfer::ReadsControl() { Reads(Role::kControl, -1, sizeof(ControlBlock), kControl); }

void Transfer::ReadsParameters(const std::vector<ParameterId>& parameters) {
  for (const ParameterId p : parameters) {
    const UnitId unit = plan_.model.parameter(p).unit;
    const ParameterPlace& place = plan_.layout.parameters[p.value()];
    const int64_t size = SizeOf(model_.group(unit, place.group).dtype);
    Reads(Role::kParameter, p.value(), NumElements(plan_.model.parameter(p).spec.shape) * size,
          GatheredOf(unit, place.group), place.first_element * size);
  }
}

void Transfer::UpdatesStates(const CallSpec& spec, const std::vector<int>& times, int64_t microbatch) {
  for (size_t i = 0; i < spec.state.size(); ++i) {
    const TensorId t = spec.state[i];
    const int64_t time = microbatch * model_.state_updates(t) + times[i];
    Updates(Role::kState, t.value(), model_.bytes_of(t), model_.State(t, time), model_.State(t, time + 1),
            BuffersOf(t).value);
  }
}

void Transfer::AddScratch(const CallSpec& spec) {
  if (spec.scratch_bytes > 0) Add(Role::kScratch, -1, Access::kAssign, spec.scratch_bytes);
}

// What a unit sends of a group: its gradients, where they lie, and padding that holds anything.
void Transfer::UsesReduceBuffer(UnitId unit, int g, int64_t microbatch, Access access) {
  const FlatGroup& group = model_.group(unit, g);
  const int64_t size = SizeOf(plan_.reduce_dtype(group));
  Add(Role::kReduceBuffer, g, access, group.num_elements * size, InPlace(unit), model_.unsharded_offset(unit, g));
  for (const PlacedParameter& placed : group.parameters) {
    if (!model_.has_gradient(placed.parameter)) continue;
    const Piece piece = {placed.first_element * size, placed.num_elements * size,
                         model_.CastGradient(placed.parameter, microbatch)};
    access == Access::kRead ? Before(piece) : After(piece);
  }
}

BufferId Transfer::InPlace(UnitId unit) const {
  const BufferId full = BuffersOf(unit).unsharded_gradient;
  return full.valid() && plan_.buffer(full).storage == Storage::kGradients ? full : BufferId();
}

absl::Status Transfer::CheckPosition(int position) const {
  if (position >= 0 && position < schedule_->microbatches) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("is at position ", position, ", but its schedule has ", schedule_->microbatches, " microbatches"));
}

absl::Status Transfer::CheckSummedPosition(int position) const {
  if (position >= -1 && position < model_.microbatches()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("is at position ", position, ", but graphs have ", model_.microbatches(), " microbatches"));
}

absl::Status Transfer::CheckTrains() const {
  if (model_.trains()) return absl::OkStatus();
  return absl::InternalError("is part of training, but the plan has no step");
}

// ---- commands ----

absl::Status Transfer::Of(const Begin&) { return absl::OkStatus(); }
absl::Status Transfer::Of(const End&) { return absl::OkStatus(); }

absl::Status Transfer::Of(const NextMicrobatch& c) {
  if (c.count != schedule_->microbatches) {
    return absl::InternalError(
        absl::StrCat("counts ", c.count, " microbatches, but its schedule has ", schedule_->microbatches));
  }
  Updates(Role::kControl, -1, sizeof(ControlBlock), {.kind = ValueKind::kControl}, kControl, plan_.control);
  return absl::OkStatus();
}

absl::Status Transfer::Of(const StageInputs& c) {
  REPRISE_RETURN_IF_ERROR(CheckPosition(c.position));
  if (c.slots != int64_t{2} * model_.microbatches()) {
    return absl::InternalError(
        absl::StrCat("takes turns in ", c.slots, " slots, but there are ", int64_t{2} * model_.microbatches()));
  }
  ReadsControl();
  for (size_t i = 0; i < plan_.tensor_buffers.size(); ++i) {
    const TensorId t(static_cast<int64_t>(i));
    const BufferId staging = plan_.tensor_buffers[i].staging;
    if (!staging.valid()) continue;
    Reads(Role::kStaging, t.value(), plan_.buffer(staging).num_bytes, {.kind = ValueKind::kStaging, .id = t.value()});
    Assigns(Role::kInput, t.value(), model_.bytes_of(t), model_.Tensor(t, c.position));
  }
  return absl::OkStatus();
}

absl::Status Transfer::Of(const AllGather& c) {
  for (int g = 0; g < model_.num_groups(c.unit); ++g) {
    const FlatGroup& group = model_.group(c.unit, g);
    const int64_t size = SizeOf(group.dtype);
    Reads(Role::kShard, g, group.shard_elements * size, model_.Shard(c.unit, g, 0));
    Assigns(Role::kGathered, g, group.num_elements * size, GatheredOf(c.unit, g));
    AlsoOfPeers(c.transport, c.axis);
  }
  return absl::OkStatus();
}

absl::Status Transfer::Of(const Forward& c) {
  REPRISE_RETURN_IF_ERROR(CheckPosition(c.position));
  const CallSpec& spec = plan_.model.call(c.call);
  const CallMeaning& call = model_.call(c.call);
  ReadsParameters(call.forward_parameters);
  for (const TensorId t : spec.inputs) Reads(Role::kInput, t.value(), model_.bytes_of(t), model_.Tensor(t, c.position));
  for (const TensorId t : spec.outputs)
    Assigns(Role::kOutput, t.value(), model_.bytes_of(t), model_.Tensor(t, c.position), BuffersOf(t).value);
  for (const TensorId t : call.private_tensors) {
    Assigns(Role::kSaved, t.value(), model_.bytes_of(t), model_.Tensor(t, c.position));
  }
  UpdatesStates(spec, call.state_times, c.position);
  AddScratch(spec);
  ReadsControl();
  return absl::OkStatus();
}

absl::Status Transfer::Of(const Backward& c) {
  REPRISE_RETURN_IF_ERROR(CheckPosition(c.position));
  const CallSpec& spec = plan_.model.call(c.call);
  const CallMeaning& call = model_.call(c.call);
  if (!call.backward) return absl::InternalError("runs, but the loss needs no gradient of its outputs");
  ReadsParameters(call.backward_parameters);
  for (const TensorId t : spec.saved) Reads(Role::kSaved, t.value(), model_.bytes_of(t), model_.Tensor(t, c.position));
  for (const TensorId t : call.output_gradients) {
    if (t == plan_.model.loss()) {
      Reads(Role::kOutputGradient, t.value(), sizeof(float), kControl, offsetof(ControlBlock, loss_scale));
    } else {
      Reads(Role::kOutputGradient, t.value(), model_.bytes_of(t), model_.TensorGradient(t, c.position));
    }
  }
  for (const GradientTerm<TensorId>& term : call.input_gradients) {
    Add(Role::kInputGradient, term.id.value(), term.index == 0 ? Access::kAssign : Access::kUpdate,
        model_.bytes_of(term.id), BuffersOf(term.id).kept_gradient);
    const int64_t bytes = operands_.back().num_bytes;
    if (term.index > 0) Before({0, bytes, model_.TensorGradient(term.id, term.index, c.position)});
    After({0, bytes, model_.TensorGradient(term.id, term.index + 1, c.position)});
  }
  // An unsharded gradient is of all microbatches of the step, of which a schedule that starts without it has the first.
  const bool starts = !model_.once() || (c.position == 0 && !schedule_->start.gradients);
  for (const GradientTerm<ParameterId>& term : call.parameter_gradients) {
    const int64_t bytes =
        NumElements(plan_.model.parameter(term.id).spec.shape) * SizeOf(model_.gradient_dtype(term.id));
    const bool assigns = starts && term.index == 0;
    Add(Role::kParameterGradient, term.id.value(), assigns ? Access::kAssign : Access::kUpdate, bytes,
        BuffersOf(plan_.model.parameter(term.id).unit).unsharded_gradient, model_.unsharded_offset(term.id));
    if (!assigns) Before({0, bytes, model_.Gradient(term.id, term.index, c.position)});
    After({0, bytes, model_.Gradient(term.id, term.index + 1, c.position)});
  }
  UpdatesStates(spec, call.backward_state_times, c.position);
  AddScratch(spec);
  ReadsControl();
  return absl::OkStatus();
}

// Casts what compute did not write in the reduce buffer itself.
absl::Status Transfer::Of(const PackGradients& c) {
  REPRISE_RETURN_IF_ERROR(CheckSummedPosition(c.position));
  const auto is_packed = [&](int g) {
    const FlatGroup& group = model_.group(c.unit, g);
    return model_.has_gradient(c.unit, g) && (model_.once() || group.dtype != plan_.reduce_dtype(group));
  };
  for (const ParameterId p : plan_.model.unit(c.unit).parameters) {
    if (!model_.has_gradient(p) || !is_packed(plan_.layout.parameters[p.value()].group)) continue;
    const int64_t elements = NumElements(plan_.model.parameter(p).spec.shape);
    if (elements == 0) continue;
    Reads(Role::kParameterGradient, p.value(), elements * SizeOf(model_.gradient_dtype(p)),
          model_.Gradient(p, c.position));
  }
  for (int g = 0; g < model_.num_groups(c.unit); ++g) {
    if (is_packed(g)) UsesReduceBuffer(c.unit, g, c.position, Access::kAssign);
  }
  return absl::OkStatus();
}

absl::Status Transfer::Of(const ReduceScatter& c) {
  REPRISE_RETURN_IF_ERROR(CheckSummedPosition(c.position));
  for (int g = 0; g < model_.num_groups(c.unit); ++g) {
    if (!model_.has_gradient(c.unit, g)) continue;
    const FlatGroup& group = model_.group(c.unit, g);
    UsesReduceBuffer(c.unit, g, c.position, Access::kRead);
    Assigns(Role::kReceived, g, ReceivedParts(plan_, c.sum) * group.shard_elements * SizeOf(plan_.reduce_dtype(group)),
            ReceivedOf(c.unit, g, c.position));
    AlsoOfPeers(c.transport, c.axis);
  }
  return absl::OkStatus();
}

absl::Status Transfer::Of(const Accumulate& c) {
  REPRISE_RETURN_IF_ERROR(CheckSummedPosition(c.position));
  if (c.mode != (model_.once() ? AccumulateMode::kAlwaysAssign : AccumulateMode::kByMicrobatch)) {
    return absl::InternalError(model_.once() ? "does not always assign, but the plan reduces once per step"
                                             : "does not assign by microbatch, but the plan reduces every microbatch");
  }
  if (const std::vector<GroupSegment> needed = model_.SegmentsOf(c.unit); c.segments != needed) {
    return absl::InternalError(absl::StrCat("adds other segments than the ", needed.size(), " that have gradients in ",
                                            plan_.model.unit(c.unit).name));
  }
  ReadsControl();
  for (int g = 0; g < model_.num_groups(c.unit); ++g) {
    if (!model_.has_gradient(c.unit, g)) continue;
    const FlatGroup& group = model_.group(c.unit, g);
    if (c.sum == Sum::kRankOrder) UsesReduceBuffer(c.unit, g, c.position, Access::kRead);
    Reads(Role::kReceived, g, ReceivedParts(plan_, c.sum) * group.shard_elements * SizeOf(plan_.reduce_dtype(group)),
          ReceivedOf(c.unit, g, c.position));
    const int64_t bytes = group.shard_elements * SizeOf(kAccumulateDType);
    Add(Role::kAccumulator, g, Access::kUpdate, bytes, BuffersOf(c.unit).accumulators[g]);
    if (!model_.once()) Before({0, bytes, model_.Accumulator(c.unit, g, int64_t{c.position} - 1)});
    After({0, bytes, model_.Accumulator(c.unit, g, c.position)});
    Add(Role::kNormPartials, g, Access::kUpdate, model_.norm_bytes(c.unit, g), plan_.norm_partials,
        model_.norm_offset(c.unit, g));
    After({0, model_.norm_bytes(c.unit, g), model_.NormPartials(c.unit, g, c.position)});
  }
  return absl::OkStatus();
}

absl::Status Transfer::Of(const RecordLoss& c) {
  REPRISE_RETURN_IF_ERROR(CheckTrains());
  REPRISE_RETURN_IF_ERROR(CheckPosition(c.position));
  const TensorId loss = plan_.model.loss();
  Reads(Role::kOutput, loss.value(), model_.bytes_of(loss), model_.Tensor(loss, c.position));
  Updates(Role::kStepState, -1, sizeof(StepState), StepStateOf(int64_t{c.position} - 1), StepStateOf(c.position),
          plan_.step_state);
  return absl::OkStatus();
}

// ---- the step ----

absl::Status Transfer::Of(const SumNorm&) {
  REPRISE_RETURN_IF_ERROR(CheckTrains());
  ReadsControl();
  Add(Role::kNormPartials, -1, Access::kRead, model_.norm_bytes());
  for (size_t u = 0; u < plan_.layout.units.size(); ++u) {
    const UnitId unit(static_cast<int64_t>(u));
    for (int g = 0; g < model_.num_groups(unit); ++g) {
      if (!model_.group(unit, g).trainable) continue;
      Before({model_.norm_offset(unit, g), model_.norm_bytes(unit, g), model_.NormPartials(unit, g, kStepTime)});
    }
  }
  const int64_t parts = int64_t{1} + plan_.world_size();
  Add(Role::kNormParts, -1, Access::kAssign, parts * static_cast<int64_t>(sizeof(NormPart)), plan_.norm_parts);
  Updates(Role::kStepState, -1, sizeof(StepState), StepStateOf(kStepTime), StepStateOf(kStepTime, /*norm=*/1),
          plan_.step_state);
  return absl::OkStatus();
}

absl::Status Transfer::Of(const UpdateParameters& c) {
  REPRISE_RETURN_IF_ERROR(CheckTrains());
  for (int g = 0; g < model_.num_groups(c.unit); ++g) {
    const FlatGroup& group = model_.group(c.unit, g);
    if (!group.trainable) continue;
    Reads(Role::kAccumulator, g, group.shard_elements * SizeOf(kAccumulateDType),
          model_.Accumulator(c.unit, g, kStepTime));
    Updates(Role::kMaster, g, group.shard_elements * SizeOf(plan_.options.master_dtype), model_.Master(c.unit, g, 0),
            model_.Master(c.unit, g, 1), BuffersOf(c.unit).masters[g]);
    for (int s = 0; s < plan_.options.optimizer_states; ++s) {
      const Value before = {ValueKind::kOptimizerState, c.unit.value(), g, s, 0};
      const Value after = {ValueKind::kOptimizerState, c.unit.value(), g, s, 1};
      Updates(Role::kOptimizerState, g, group.shard_elements * SizeOf(DType::kFloat32), before, after,
              BuffersOf(c.unit).optimizer_states[g][s]);
    }
  }
  ReadsControl();
  Reads(Role::kStepState, -1, sizeof(StepState), StepStateOf(kStepTime, /*norm=*/1));
  return absl::OkStatus();
}

absl::Status Transfer::Of(const RefreshShards& c) {
  REPRISE_RETURN_IF_ERROR(CheckTrains());
  for (int g = 0; g < model_.num_groups(c.unit); ++g) {
    const FlatGroup& group = model_.group(c.unit, g);
    if (!group.trainable || group.dtype == plan_.options.master_dtype) continue;
    Reads(Role::kMaster, g, group.shard_elements * SizeOf(plan_.options.master_dtype), model_.Master(c.unit, g, 1));
    Assigns(Role::kShard, g, group.shard_elements * SizeOf(group.dtype), model_.Shard(c.unit, g, 1),
            BuffersOf(c.unit).weights[g]);
  }
  return absl::OkStatus();
}

absl::Status Transfer::Of(const PublishMetrics&) {
  REPRISE_RETURN_IF_ERROR(CheckTrains());
  ReadsControl();
  Updates(Role::kStepState, -1, sizeof(StepState), StepStateOf(kStepTime, /*norm=*/1), StepStateOf(-1),
          plan_.step_state);
  Updates(Role::kMetrics, -1, sizeof(MetricsRing), {.kind = ValueKind::kMetrics}, {ValueKind::kMetrics, 0, 0, 0, 1},
          plan_.metrics);
  return absl::OkStatus();
}

}  // namespace reprise::internal
