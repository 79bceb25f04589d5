#include "core/planner/graph_planner.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/planner/plan_buffers.h"
#include "core/planner/schedule_builder.h"
#include "reprise/core/control_block.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

BufferUse WholeUse(const Plan& plan, BufferId buffer, Access access, Role role, int32_t id = -1) {
  return {buffer, 0, plan.buffer(buffer).num_bytes, access, role, id};
}

// The element of a list by unit, or null.
template <class T>
const T* FindUnit(const std::vector<T>& list, UnitId unit) {
  const auto found = std::lower_bound(list.begin(), list.end(), unit, [](const T& a, UnitId b) { return a.unit < b; });
  return found != list.end() && found->unit == unit ? &*found : nullptr;
}

bool Computes(const Command& command) {
  return std::holds_alternative<Forward>(command) || std::holds_alternative<Backward>(command);
}

void MarkBesideCompute(std::vector<ScheduledCommand>& commands) {
  bool computes = false;
  for (size_t c = commands.size(); c-- > 0;) {
    if (auto* accumulate = std::get_if<Accumulate>(&commands[c].command)) accumulate->beside_compute = computes;
    computes = computes || Computes(commands[c].command);
  }
}

class GraphPlanner {
 public:
  GraphPlanner(Plan& plan, const GraphInputs& inputs)
      : plan_(plan),
        in_(inputs),
        gradients_(plan, inputs.gradients, inputs.start == GraphStart::kSteady, builder_),
        copy_buffers_(inputs.gathers.copies.size()),
        copy_readers_(inputs.gathers.copies.size()),
        unit_copies_(plan.model.units().size(), -1) {
    while (next_gather_ < in_.gathers.copies.size() && in_.gathers.copies[next_gather_].resident_at_start) {
      const GatheredCopy& copy = in_.gathers.copies[next_gather_];
      copy_buffers_[next_gather_++] = BoundaryBuffer(copy);
    }
  }

  absl::Status Run(const std::string& name) {
    const int microbatches = *plan_.options.microbatches_per_graph;
    builder_.Add(NextMicrobatch{microbatches}, Lane::kCompute,
                 {WholeUse(plan_, plan_.control, Access::kUpdate, Role::kControl)});
    IssueGathers(-1);
    if (in_.start == GraphStart::kSteady) {
      for (const OutstandingReduction& carried : in_.carried_state.outstanding) gradients_.ReduceCarried(carried, -1);
    }
    for (int m = 0; m < microbatches; ++m) REPRISE_RETURN_IF_ERROR(AddMicrobatch(m, m + 1 == microbatches));
    Schedule& schedule = plan_.schedules.emplace_back();
    schedule.name = name;
    schedule.microbatches = microbatches;
    schedule.commands = builder_.Finish();
    MarkBesideCompute(schedule.commands);
    schedule.end = {in_.carried_state.residents, in_.carried_state.outstanding,
                    in_.training && plan_.options.reduce == Reduce::kOncePerStep};
    if (in_.start == GraphStart::kSteady) schedule.start = schedule.end;
    return absl::OkStatus();
  }

 private:
  const CallSpec& Spec(CallId call) const { return plan_.model.call(call); }
  const CallUses& UsesOf(CallId call) const { return in_.uses.calls[call.value()]; }

  // ---- weights ----

  // The buffer of a copy that lives across graphs; invalid for any other copy.
  BufferId BoundaryBuffer(const GatheredCopy& copy) const {
    const Resident* resident = FindUnit(in_.carried_state.residents, copy.unit);
    return resident != nullptr && (copy.kept || copy.resident_at_start) ? resident->buffer : BufferId();
  }

  // Issues the gathers that may go out once `access` has been issued (-1: none has).
  void IssueGathers(int access) {
    for (; next_gather_ < in_.gathers.copies.size(); ++next_gather_) {
      const GatheredCopy& copy = in_.gathers.copies[next_gather_];
      if (copy.issue_after > access) return;
      Gather(static_cast<int>(next_gather_), copy);
    }
  }

  void Gather(int index, const GatheredCopy& copy) {
    BufferId& buffer = copy_buffers_[index];
    buffer = BoundaryBuffer(copy);
    if (!buffer.valid()) buffer = AddGatheredBuffer(plan_, copy.unit, absl::StrCat(index));
    const UnitLayout& layout = plan_.layout.units[copy.unit.value()];
    const UnitBuffers& unit = plan_.unit_buffers[copy.unit.value()];
    const Transport transport = plan_.unit_policies[copy.unit.value()].transports.gather;
    const AxisId axis(0);
    std::vector<BufferUse> uses;
    for (size_t g = 0; g < layout.groups.size(); ++g) {
      const int32_t id = static_cast<int32_t>(g);
      uses.push_back(WholeUse(plan_, unit.weights[g], Access::kRead, Role::kShard, id));
      uses.push_back({buffer, layout.gathered_offsets[g],
                      layout.groups[g].num_elements * SizeOf(layout.groups[g].dtype), Access::kAssign, Role::kGathered,
                      id});
      AddPeerUse(transport, axis, uses);
    }
    std::vector<CommandId> after;
    if (copy.previous >= 0 && copy_readers_[copy.previous].valid()) after.push_back(copy_readers_[copy.previous]);
    if (copy.limit >= 0) after.push_back(access_commands_[copy.limit]);
    builder_.Add(AllGather{copy.unit, copy.slot, transport, axis}, Lane::kAllGather, std::move(uses), after);
  }

  // Views of the parameters in the copies that the present access reads.
  void AddParameterUses(const std::vector<ParameterId>& parameters, std::vector<BufferUse>& uses) {
    const std::vector<int>& copies = in_.gathers.access_copies[access_commands_.size()];
    for (int copy : copies) unit_copies_[in_.gathers.copies[copy].unit.value()] = copy;
    for (ParameterId p : parameters) {
      const UnitId unit = plan_.model.parameter(p).unit;
      const UnitLayout& layout = plan_.layout.units[unit.value()];
      const ParameterPlace& place = plan_.layout.parameters[p.value()];
      const int64_t size = SizeOf(plan_.model.parameter(p).spec.dtype);
      BufferUse use{
          plan_.unit_buffers[unit.value()].weights[place.group], 0, 0, Access::kRead, Role::kParameter, p.value()};
      if (const int copy = unit_copies_[unit.value()]; copy >= 0) {
        use.buffer = copy_buffers_[copy];
        use.offset = layout.gathered_offsets[place.group] + place.first_element * size;
        use.num_bytes = NumElements(plan_.model.parameter(p).spec.shape) * size;
      }
      uses.push_back(use);
    }
    for (int copy : copies) unit_copies_[in_.gathers.copies[copy].unit.value()] = -1;
  }

  // Closes the present access: `command` is its last command.
  void EndAccess(CommandId command) {
    for (int copy : in_.gathers.access_copies[access_commands_.size()]) copy_readers_[copy] = command;
    access_commands_.push_back(command);
    IssueGathers(static_cast<int>(access_commands_.size()) - 1);
  }

  // ---- tensors ----

  BufferId NewTensor(TensorId id, const char* what) {
    return AddBuffer(plan_, absl::StrCat(what, plan_.model.tensor(id).spec.name, ".m", position_), Storage::kLocal,
                     TensorBytes(plan_.model.tensor(id).spec));
  }
  BufferUse TensorUse(TensorId id, BufferId buffer, Access access, Role role) const {
    return WholeUse(plan_, buffer, access, role, id.value());
  }

  // Makes the buffers of a microbatch's inputs and copies those that are staged. The first microbatch's are copied at
  // the head of the graph; later ones on a lane of their own, beside the last command of the microbatch before.
  void StageInputsOf(int position) {
    const int present = std::exchange(position_, position);
    inputs_.assign(plan_.model.tensors().size(), BufferId());
    for (size_t t = 0; t < inputs_.size(); ++t) {
      if (plan_.model.tensors()[t].kind == TensorKind::kInput) inputs_[t] = plan_.tensor_buffers[t].value;
    }
    std::vector<BufferUse> uses = {WholeUse(plan_, plan_.control, Access::kRead, Role::kControl)};
    for (size_t t = 0; t < plan_.model.tensors().size(); ++t) {
      const TensorId id(static_cast<int64_t>(t));
      const BufferId staging = plan_.tensor_buffers[t].staging;
      if (!staging.valid()) continue;
      inputs_[t] = NewTensor(id, "");
      uses.push_back(TensorUse(id, staging, Access::kRead, Role::kStaging));
      uses.push_back(TensorUse(id, inputs_[t], Access::kAssign, Role::kInput));
    }
    const StageInputs stage = {position, 2 * *plan_.options.microbatches_per_graph};
    const bool is_staged = uses.size() > 1;
    if (is_staged && position == 0) {
      builder_.Add(stage, Lane::kCompute, std::move(uses));
    } else if (is_staged) {
      std::vector<CommandId> after;
      if (!access_commands_.empty()) after.push_back(access_commands_.back());
      builder_.Add(stage, Lane::kCopy, std::move(uses), after);
    }
    position_ = present;
  }

  // What forward and backward share: state, scratch and the control block.
  void AddCommonUses(const CallSpec& spec, const char* phase, std::vector<BufferUse>& uses) {
    for (TensorId t : spec.state) {
      uses.push_back(TensorUse(t, plan_.tensor_buffers[t.value()].value, Access::kUpdate, Role::kState));
    }
    if (spec.scratch_bytes > 0) {
      const BufferId scratch = AddBuffer(plan_, absl::StrCat("scratch.", spec.name, ".", phase, ".m", position_),
                                         Storage::kLocal, spec.scratch_bytes);
      uses.push_back(WholeUse(plan_, scratch, Access::kAssign, Role::kScratch));
    }
    uses.push_back(WholeUse(plan_, plan_.control, Access::kRead, Role::kControl));
  }

  // `made` receives the buffers of the outputs and private tensors.
  CommandId AddForward(CallId call, bool recompute, std::vector<BufferId>& made) {
    const CallSpec& spec = Spec(call);
    std::vector<BufferUse> uses;
    AddParameterUses(UsesOf(call).forward_parameters, uses);
    for (TensorId t : UsesOf(call).inputs) {
      uses.push_back(TensorUse(t, values_[t.value()], Access::kRead, Role::kInput));
    }
    for (TensorId t : spec.outputs) {
      const BufferId persistent = plan_.tensor_buffers[t.value()].value;
      made[t.value()] = recompute ? NewTensor(t, "recomputed.") : persistent.valid() ? persistent : NewTensor(t, "");
      uses.push_back(TensorUse(t, made[t.value()], Access::kAssign, Role::kOutput));
    }
    for (TensorId t : UsesOf(call).private_tensors) {
      made[t.value()] = NewTensor(t, recompute ? "recomputed." : "");
      uses.push_back(TensorUse(t, made[t.value()], Access::kAssign, Role::kSaved));
    }
    AddCommonUses(spec, recompute ? "recomputed" : "forward", uses);
    return builder_.Add(Forward{call, position_, recompute}, Lane::kCompute, std::move(uses));
  }

  absl::Status AddBackward(CallId call) {
    const CallSpec& spec = Spec(call);
    const CallUses& call_uses = UsesOf(call);
    std::vector<BufferId> recomputed;
    if (spec.recompute) {
      recomputed = values_;
      AddForward(call, /*recompute=*/true, recomputed);
    }
    const std::vector<BufferId>& saved = spec.recompute ? recomputed : values_;
    std::vector<BufferUse> uses;
    std::vector<CommandId> after;
    AddParameterUses(call_uses.backward_parameters, uses);
    for (TensorId t : spec.saved) {
      uses.push_back(TensorUse(t, saved[t.value()], Access::kRead, Role::kSaved));
    }
    for (TensorId t : call_uses.output_gradients) {
      if (t == plan_.model.loss()) {
        uses.push_back({plan_.control, offsetof(ControlBlock, loss_scale), sizeof(float), Access::kRead,
                        Role::kOutputGradient, t.value()});
      } else {
        uses.push_back(TensorUse(t, tensor_gradients_[t.value()], Access::kRead, Role::kOutputGradient));
      }
    }
    for (TensorId t : call_uses.input_gradients) {
      BufferId& gradient = tensor_gradients_[t.value()];
      const bool first = !gradient.valid();
      if (first) gradient = plan_.tensor_buffers[t.value()].kept_gradient;
      if (!gradient.valid()) gradient = NewTensor(t, "gradient.");
      uses.push_back(TensorUse(t, gradient, first ? Access::kAssign : Access::kUpdate, Role::kInputGradient));
    }
    REPRISE_RETURN_IF_ERROR(gradients_.AddWriteUses(call, call_uses.parameter_gradients, uses, after));
    AddCommonUses(spec, "backward", uses);
    EndAccess(builder_.Add(Backward{call, position_}, Lane::kCompute, std::move(uses), after));
    return absl::OkStatus();
  }

  // ---- one microbatch ----

  absl::Status AddMicrobatch(int position, bool last) {
    if (position == 0) StageInputsOf(0);
    position_ = position;
    values_ = inputs_;
    tensor_gradients_.assign(values_.size(), BufferId());
    const size_t num_calls = plan_.model.calls().size();
    std::vector<CallId> backward;
    for (size_t c = num_calls; in_.training && c-- > 0;) {
      if (in_.uses.calls[c].backward) backward.emplace_back(static_cast<int64_t>(c));
    }
    for (size_t c = 0; c < num_calls; ++c) {
      if (!last && backward.empty() && c + 1 == num_calls) StageInputsOf(position + 1);
      EndAccess(AddForward(CallId(static_cast<int64_t>(c)), /*recompute=*/false, values_));
    }
    if (!in_.training) return absl::OkStatus();
    const TensorId loss = plan_.model.loss();
    builder_.Add(RecordLoss{position_}, Lane::kCompute,
                 {TensorUse(loss, values_[loss.value()], Access::kRead, Role::kOutput),
                  WholeUse(plan_, plan_.step_state, Access::kUpdate, Role::kStepState)});
    gradients_.StartMicrobatch(position_);
    if (last) {
      for (const OutstandingReduction& carried : in_.carried_state.outstanding) gradients_.BindReduceBuffer(carried);
    }
    for (const CallId call : backward) {
      if (!last && call == backward.back()) StageInputsOf(position + 1);
      REPRISE_RETURN_IF_ERROR(AddBackward(call));
      if (plan_.options.reduce == Reduce::kOncePerStep) continue;
      for (UnitId unit : in_.gradients.completed_by[call.value()]) REPRISE_RETURN_IF_ERROR(Complete(unit, last));
    }
    return absl::OkStatus();
  }

  absl::Status Complete(UnitId unit, bool last) {
    const OutstandingReduction* carried = last ? FindUnit(in_.carried_state.outstanding, unit) : nullptr;
    return carried != nullptr ? gradients_.Carry(*carried) : gradients_.Reduce(unit);
  }

  Plan& plan_;
  const GraphInputs& in_;
  ScheduleBuilder builder_;
  GradientPlanner gradients_;
  std::vector<BufferId> copy_buffers_;   // by copy
  std::vector<CommandId> copy_readers_;  // by copy: its last reader so far
  std::vector<int> unit_copies_;         // by unit: its copy while AddParameterUses runs, else -1
  size_t next_gather_ = 0;
  std::vector<CommandId> access_commands_;  // of the accesses issued so far
  int position_ = 0;
  std::vector<BufferId> inputs_;            // by tensor, of the microbatch staged last; invalid for other tensors
  std::vector<BufferId> values_;            // by tensor, of this microbatch
  std::vector<BufferId> tensor_gradients_;  // by tensor, of this microbatch
};

}  // namespace

absl::Status PlanGraph(Plan& plan, const std::string& name, const GraphInputs& inputs) {
  return GraphPlanner(plan, inputs).Run(name);
}

absl::Status PlanFinish(Plan& plan, const GradientPlan& gradients, const CarriedState& carried_state) {
  const bool once = plan.options.reduce == Reduce::kOncePerStep;
  if (!once && carried_state.outstanding.empty()) return absl::OkStatus();
  ScheduleBuilder builder;
  GradientPlanner planner(plan, gradients, /*adds=*/true, builder);
  for (const OutstandingReduction& carried : carried_state.outstanding) {
    planner.ReduceCarried(carried, *plan.options.microbatches_per_graph - 1);
  }
  for (size_t c = gradients.completed_by.size(); once && c-- > 0;) {
    for (UnitId unit : gradients.completed_by[c]) REPRISE_RETURN_IF_ERROR(planner.Reduce(unit));
  }
  plan.finish = static_cast<int>(plan.schedules.size());
  Schedule& schedule = plan.schedules.emplace_back();
  schedule.name = "finish";
  schedule.start = {{}, carried_state.outstanding, once};
  schedule.commands = builder.Finish();
  return absl::OkStatus();
}

void PlanStep(Plan& plan) {
  ScheduleBuilder builder;
  const auto whole = [&](BufferId buffer, Access access, Role role, int32_t id = -1) {
    return WholeUse(plan, buffer, access, role, id);
  };
  builder.Add(SumNorm{AxisId(0)}, Lane::kReduceScatter,
              {whole(plan.control, Access::kRead, Role::kControl),
               whole(plan.norm_partials, Access::kRead, Role::kNormPartials),
               whole(plan.norm_parts, Access::kAssign, Role::kNormParts),
               whole(plan.step_state, Access::kUpdate, Role::kStepState)});
  for (size_t u = 0; u < plan.layout.units.size(); ++u) {
    const UnitId unit(static_cast<int64_t>(u));
    const UnitBuffers& buffers = plan.unit_buffers[u];
    std::vector<BufferUse> update, refresh;
    for (int32_t g = 0; g < static_cast<int32_t>(plan.layout.units[u].groups.size()); ++g) {
      if (!plan.layout.units[u].groups[g].trainable) continue;
      update.push_back(whole(buffers.accumulators[g], Access::kRead, Role::kAccumulator, g));
      update.push_back(whole(buffers.masters[g], Access::kUpdate, Role::kMaster, g));
      for (BufferId state : buffers.optimizer_states[g]) {
        update.push_back(whole(state, Access::kUpdate, Role::kOptimizerState, g));
      }
      if (buffers.masters[g] == buffers.weights[g]) continue;
      refresh.push_back(whole(buffers.masters[g], Access::kRead, Role::kMaster, g));
      refresh.push_back(whole(buffers.weights[g], Access::kAssign, Role::kShard, g));
    }
    if (update.empty()) continue;
    update.push_back(whole(plan.control, Access::kRead, Role::kControl));
    update.push_back(whole(plan.step_state, Access::kRead, Role::kStepState));
    builder.Add(UpdateParameters{unit}, Lane::kCompute, std::move(update));
    if (!refresh.empty()) builder.Add(RefreshShards{unit}, Lane::kCompute, std::move(refresh));
  }
  builder.Add(
      PublishMetrics{}, Lane::kCompute,
      {whole(plan.control, Access::kRead, Role::kControl), whole(plan.step_state, Access::kUpdate, Role::kStepState),
       whole(plan.metrics, Access::kUpdate, Role::kMetrics)});
  plan.step = static_cast<int>(plan.schedules.size());
  Schedule& schedule = plan.schedules.emplace_back();
  schedule.name = "step";
  schedule.commands = builder.Finish();
}

}  // namespace reprise::internal
