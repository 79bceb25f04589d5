#include "core/planner/gradient_planner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/planner/plan_buffers.h"
#include "reprise/core/norm_ranges.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

int64_t ElementsOf(const Model& model, ParameterId parameter) {
  return NumElements(model.parameter(parameter).spec.shape);
}

// Units whose gradient a backward call writes, without repeats, by id.
std::vector<UnitId> WrittenUnits(const Model& model, const CallUses& call) {
  std::vector<UnitId> units;
  for (ParameterId p : call.parameter_gradients) {
    if (ElementsOf(model, p) > 0) units.push_back(model.parameter(p).unit);
  }
  std::sort(units.begin(), units.end());
  units.erase(std::unique(units.begin(), units.end()), units.end());
  return units;
}

}  // namespace

bool WritesReduceBuffer(const PlanOptions& options, const FlatGroup& group) {
  return options.reduce == Reduce::kEveryMicrobatch && group.dtype == group.reduce_dtype.value_or(options.reduce_dtype);
}

GradientPlan PlanGradients(const Plan& plan, const PlanOptions& options, const ModelUses& uses) {
  const Model& model = plan.model;
  GradientPlan result;
  result.units.resize(model.units().size());
  result.completed_by.resize(uses.calls.size());
  for (size_t p = 0; p < model.parameters().size(); ++p) {
    const ParameterId id(static_cast<int64_t>(p));
    if (!uses.has_gradient[p] || ElementsOf(model, id) == 0) continue;
    UnitGradient& unit = result.units[model.parameter(id).unit.value()];
    unit.parameters.push_back(id);
    const UnitLayout& layout = plan.layout.units[model.parameter(id).unit.value()];
    unit.direct = unit.direct || WritesReduceBuffer(options, layout.groups[plan.layout.parameters[p].group]);
  }
  // writes_before[i]: how many (call, unit) pairs the first i backward calls write, in the order they run.
  std::vector<int64_t> writes_before = {0};
  std::vector<int64_t> own_writes(model.units().size(), 0);
  for (size_t c = uses.calls.size(); c-- > 0;) {
    const std::vector<UnitId> written = WrittenUnits(model, uses.calls[c]);
    for (UnitId u : written) {
      UnitGradient& unit = result.units[u.value()];
      if (unit.first_call < 0) unit.first_call = static_cast<int>(c);
      unit.last_call = static_cast<int>(c);
      ++own_writes[u.value()];
    }
    writes_before.push_back(writes_before.back() + static_cast<int64_t>(written.size()));
  }
  int last_writing_call = static_cast<int>(uses.calls.size());
  for (const UnitGradient& unit : result.units) {
    if (unit.last_call >= 0) last_writing_call = std::min(last_writing_call, unit.last_call);
  }
  const auto run_index = [&](int call) { return uses.calls.size() - 1 - static_cast<size_t>(call); };
  for (size_t u = 0; u < result.units.size(); ++u) {
    UnitGradient& unit = result.units[u];
    unit.in_place = ReducesInPlace(options, plan.layout.units[u]);
    if (unit.last_call < 0) continue;
    result.completed_by[unit.last_call].push_back(UnitId(static_cast<int64_t>(u)));
    const int64_t writes = writes_before[run_index(unit.last_call) + 1] - writes_before[run_index(unit.first_call)];
    const bool held = unit.direct && writes > own_writes[u] && unit.first_call != unit.last_call;
    const bool carried = options.tail == Tail::kCarried && unit.last_call == last_writing_call;
    if (held || carried) unit.dedicated_slot = result.dedicated_slots++;
  }
  // Units that hold a slot give it back before others, which take one only to pack, ask for theirs.
  for (std::vector<UnitId>& completed : result.completed_by) {
    std::stable_partition(completed.begin(), completed.end(), [&](UnitId u) { return result.units[u.value()].direct; });
  }
  return result;
}

int GradientSlotNeed(const GradientPlan& gradients, const ModelUses& uses, const Model& model) {
  int need = 1;
  for (const CallUses& call : uses.calls) {
    int units = 0;
    for (UnitId u : WrittenUnits(model, call)) {
      const UnitGradient& unit = gradients.units[u.value()];
      units += unit.direct && unit.dedicated_slot < 0 ? 1 : 0;
    }
    need = std::max(need, units);
  }
  return need;
}

GradientPlanner::GradientPlanner(Plan& plan, const GradientPlan& gradients, bool adds, ScheduleBuilder& builder)
    : plan_(plan),
      gradients_(gradients),
      adds_(adds),
      builder_(builder),
      last_readers_(*plan.options.gradient_slots + gradients.dedicated_slots),
      locals_(plan.model.parameters().size()) {
  for (int slot = 0; slot < *plan.options.gradient_slots; ++slot) free_.insert({CommandId(), slot});
  for (size_t u = 0; u < plan.model.units().size(); ++u) {
    reduce_offsets_.push_back(ReduceOffsets(plan, UnitId(static_cast<int64_t>(u))));
    full_offsets_.push_back(UnshardedGradientOffsets(plan, UnitId(static_cast<int64_t>(u))));
  }
  StartMicrobatch(0);
}

void GradientPlanner::StartMicrobatch(int position) {
  position_ = position;
  reduce_buffers_.assign(plan_.model.units().size(), BufferId());
  for (size_t u = 0; u < reduce_buffers_.size(); ++u) {
    if (gradients_.units[u].in_place) reduce_buffers_[u] = plan_.unit_buffers[u].unsharded_gradient;
  }
  unit_slots_.assign(plan_.model.units().size(), -1);
  written_.assign(plan_.model.parameters().size(), false);
}

const FlatGroup& GradientPlanner::GroupOf(ParameterId parameter) const {
  const UnitLayout& unit = plan_.layout.units[plan_.model.parameter(parameter).unit.value()];
  return unit.groups[plan_.layout.parameters[parameter.value()].group];
}

BufferUse GradientPlanner::ReduceUse(UnitId unit, int group, BufferId buffer, Access access) const {
  const FlatGroup& flat = plan_.layout.units[unit.value()].groups[group];
  return {buffer,
          reduce_offsets_[unit.value()][group],
          flat.num_elements * SizeOf(plan_.reduce_dtype(flat)),
          access,
          Role::kReduceBuffer,
          group};
}

BufferUse GradientPlanner::WrittenInReduceBuffer(ParameterId parameter) const {
  const ParameterPlace& place = plan_.layout.parameters[parameter.value()];
  const UnitId unit = plan_.model.parameter(parameter).unit;
  const int64_t size = SizeOf(plan_.reduce_dtype(GroupOf(parameter)));
  return {.buffer = reduce_buffers_[unit.value()],
          .offset = reduce_offsets_[unit.value()][place.group] + place.first_element * size,
          .num_bytes = ElementsOf(plan_.model, parameter) * size};
}

std::vector<int> GradientPlanner::GroupsOf(UnitId unit) const {
  std::vector<int> groups;
  for (ParameterId p : gradients_.units[unit.value()].parameters) {
    groups.push_back(plan_.layout.parameters[p.value()].group);
  }
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  return groups;
}

absl::Status GradientPlanner::TakeSlot(UnitId unit, absl::string_view who, std::vector<CommandId>& after) {
  int& slot = unit_slots_[unit.value()];
  if (slot >= 0) return absl::OkStatus();
  const int shared = *plan_.options.gradient_slots;
  if (const int own = gradients_.units[unit.value()].dedicated_slot; own >= 0) {
    slot = shared + own;
  } else if (!free_.empty()) {
    slot = free_.begin()->second;  // the one that was read first
    free_.erase(free_.begin());
  }
  if (slot < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat(who, " writes the gradients of more units at once than gradient_slots = ", shared,
                     " allows (unit \"", plan_.model.unit(unit).name, "\" found none free); raise gradient_slots"));
  }
  if (last_readers_[slot].valid()) after.push_back(last_readers_[slot]);
  BufferId& buffer = reduce_buffers_[unit.value()];
  if (!buffer.valid()) buffer = AddReduceBuffer(plan_, unit, absl::StrCat("m", position_));
  return absl::OkStatus();
}

BufferUse GradientPlanner::GradientUse(ParameterId parameter) {
  const FlatGroup& group = GroupOf(parameter);
  const int64_t elements = ElementsOf(plan_.model, parameter);
  const ParameterPlace& place = plan_.layout.parameters[parameter.value()];
  const UnitId unit = plan_.model.parameter(parameter).unit;
  BufferUse use;
  if (plan_.options.reduce == Reduce::kOncePerStep) {
    const int64_t size = SizeOf(kAccumulateDType);
    use.buffer = plan_.unit_buffers[unit.value()].unsharded_gradient;
    use.offset = full_offsets_[unit.value()][place.group] + place.first_element * size;
    use.num_bytes = elements * size;
  } else if (elements > 0 && WritesReduceBuffer(plan_.options, group)) {
    use = WrittenInReduceBuffer(parameter);
  } else {
    BufferId& local = locals_[parameter.value()];
    if (!written_[parameter.value()]) {
      local = AddBuffer(plan_, absl::StrCat("gradient.", plan_.model.parameter(parameter).spec.name, ".m", position_),
                        Storage::kLocal, elements * SizeOf(group.dtype));
    }
    use.buffer = local;
    use.num_bytes = elements * SizeOf(group.dtype);
  }
  use.role = Role::kParameterGradient;
  use.id = parameter.value();
  return use;
}

absl::Status GradientPlanner::AddWriteUses(CallId call, const std::vector<ParameterId>& parameters,
                                           std::vector<BufferUse>& uses, std::vector<CommandId>& after) {
  const bool once = plan_.options.reduce == Reduce::kOncePerStep;
  for (ParameterId p : parameters) {
    const UnitId unit = plan_.model.parameter(p).unit;
    if (gradients_.units[unit.value()].direct && ElementsOf(plan_.model, p) > 0) {
      REPRISE_RETURN_IF_ERROR(
          TakeSlot(unit, absl::StrCat("backward of call \"", plan_.model.call(call).name, "\""), after));
    }
    BufferUse use = GradientUse(p);
    const bool adds = written_[p.value()] || (once && (adds_ || position_ > 0));
    use.access = adds ? Access::kUpdate : Access::kAssign;
    written_[p.value()] = true;
    uses.push_back(use);
  }
  return absl::OkStatus();
}

void GradientPlanner::ReleaseSlot(int slot, CommandId last_reader) {
  if (slot < 0) return;  // reduced in place
  last_readers_[slot] = last_reader;
  if (slot < *plan_.options.gradient_slots) free_.insert({last_reader, slot});
}

absl::Status GradientPlanner::Pack(UnitId unit) {
  if (gradients_.units[unit.value()].in_place) return absl::OkStatus();
  std::vector<CommandId> after;
  REPRISE_RETURN_IF_ERROR(TakeSlot(unit, absl::StrCat("pack of unit \"", plan_.model.unit(unit).name, "\""), after));
  const std::vector<FlatGroup>& groups = plan_.layout.units[unit.value()].groups;
  std::vector<BufferUse> uses;
  for (ParameterId p : gradients_.units[unit.value()].parameters) {
    if (WritesReduceBuffer(plan_.options, GroupOf(p))) continue;
    written_[p.value()] = true;
    uses.push_back(GradientUse(p));
  }
  if (uses.empty()) return absl::OkStatus();
  for (int group : GroupsOf(unit)) {
    if (WritesReduceBuffer(plan_.options, groups[group])) continue;
    uses.push_back(ReduceUse(unit, group, reduce_buffers_[unit.value()], Access::kAssign));
  }
  builder_.Add(PackGradients{unit, position_}, Lane::kCompute, std::move(uses), after);
  return absl::OkStatus();
}

absl::Status GradientPlanner::Reduce(UnitId unit) {
  REPRISE_RETURN_IF_ERROR(Pack(unit));
  ReduceAndAccumulate(
      unit, position_, reduce_buffers_[unit.value()], unit_slots_[unit.value()],
      plan_.options.reduce == Reduce::kOncePerStep ? AccumulateMode::kAlwaysAssign : AccumulateMode::kByMicrobatch);
  return absl::OkStatus();
}

absl::Status GradientPlanner::Carry(const OutstandingReduction& carried) { return Pack(carried.unit); }

void GradientPlanner::ReduceCarried(const OutstandingReduction& carried, int position) {
  ReduceAndAccumulate(carried.unit, position, carried.buffer, carried.slot, AccumulateMode::kByMicrobatch);
}

void GradientPlanner::ReduceAndAccumulate(UnitId unit, int position, BufferId buffer, int slot, AccumulateMode mode) {
  const UnitPolicy& policy = plan_.unit_policies[unit.value()];
  const AxisId axis(0);
  const std::vector<FlatGroup>& groups = plan_.layout.units[unit.value()].groups;
  std::vector<BufferUse> reduce,
      accumulate = {{plan_.control, 0, plan_.buffer(plan_.control).num_bytes, Access::kRead, Role::kControl, -1}};
  int64_t total = 0;
  const BufferId received(static_cast<int64_t>(plan_.buffers.size()));
  for (int g : GroupsOf(unit)) {
    reduce.push_back(ReduceUse(unit, g, buffer, Access::kRead));
    if (policy.sum == Sum::kRankOrder) accumulate.push_back(reduce.back());
    const int64_t received_bytes =
        ReceivedParts(plan_, policy.sum) * groups[g].shard_elements * SizeOf(plan_.reduce_dtype(groups[g]));
    const BufferId accumulator = plan_.unit_buffers[unit.value()].accumulators[g];
    reduce.push_back({received, total, received_bytes, Access::kAssign, Role::kReceived, g});
    AddPeerUse(policy.transports.exchange, axis, reduce);
    accumulate.push_back({received, total, received_bytes, Access::kRead, Role::kReceived, g});
    accumulate.push_back({accumulator, 0, plan_.buffer(accumulator).num_bytes, Access::kUpdate, Role::kAccumulator, g});
    // An update, since all microbatches but the last leave what is there.
    accumulate.push_back({plan_.norm_partials, plan_.unit_buffers[unit.value()].norm_partials[g],
                          NormRanges(groups[g].shard_elements) * static_cast<int64_t>(sizeof(double)), Access::kUpdate,
                          Role::kNormPartials, g});
    total += (received_bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  }
  AddBuffer(plan_, absl::StrCat("received.", plan_.model.unit(unit).name, ".m", position), Storage::kCommunicating,
            total);
  const CommandId reduced =
      builder_.Add(ReduceScatter{unit, position, slot, policy.transports.exchange, policy.sum, axis},
                   Lane::kReduceScatter, std::move(reduce));
  Accumulate command = {unit, position, policy.sum, mode};
  command.segments = SegmentsOf(unit);
  const CommandId accumulated = builder_.Add(std::move(command), Lane::kReduceScatter, std::move(accumulate));
  ReleaseSlot(slot, policy.sum == Sum::kRankOrder ? accumulated : reduced);
}

std::vector<GroupSegment> GradientPlanner::SegmentsOf(UnitId unit) const {
  std::vector<GroupSegment> segments;
  for (ParameterId p : gradients_.units[unit.value()].parameters) {
    const ParameterPlace& place = plan_.layout.parameters[p.value()];
    segments.push_back({place.group, place.first_element, ElementsOf(plan_.model, p)});
  }
  std::sort(segments.begin(), segments.end(), [](const GroupSegment& a, const GroupSegment& b) {
    return std::pair(a.group, a.first_element) < std::pair(b.group, b.first_element);
  });
  return segments;
}

}  // namespace reprise::internal
