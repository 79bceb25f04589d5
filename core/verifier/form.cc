// Check::kForm: everything that the other checks take for granted.
#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/policy/transport_checks.h"
#include "core/verifier/checks.h"
#include "core/verifier/slots.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// In bytes or elements; no offset that is computed from such sizes overflows.
constexpr int64_t kMaxLayout = int64_t{1} << 58;

bool InRange(int64_t value, int64_t size) { return value >= 0 && value < size; }
template <class Tag, class List>
bool InRange(Id<Tag> id, const List& list) {
  return InRange(id.value(), static_cast<int64_t>(list.size()));
}
template <class Enum>
bool IsKnown(Enum value, Enum last) {
  return value <= last;
}

// ---- the plan ----

absl::Status CheckOptions(const Plan& plan) {
  const PlanOptions& options = plan.options;
  if (!options.prefetch_depth || !options.weight_slots || !options.gradient_slots || !options.microbatches_per_graph ||
      !options.sum) {
    return absl::InternalError("an option of the plan is unset");
  }
  const bool known = IsKnown(options.residency, Residency::kOff) && IsKnown(options.reduce, Reduce::kOncePerStep) &&
                     IsKnown(options.tail, Tail::kCarried) && options.sum <= Sum::kNccl &&
                     IsKnown(options.reduce_dtype, DType::kUInt8) && IsKnown(kAccumulateDType, DType::kUInt8) &&
                     IsKnown(options.master_dtype, DType::kUInt8);
  if (!known) return absl::InternalError("an option of the plan has a value that does not exist");
  if (const absl::Status status = CheckTransportChoices(options.transports, *options.sum); !status.ok()) {
    return absl::InternalError(absl::StrCat("the plan's options: ", status.message()));
  }
  const int64_t depth = *options.prefetch_depth, gradient_slots = *options.gradient_slots;
  const int64_t microbatches = *options.microbatches_per_graph;
  if (microbatches < 1) {
    return absl::InternalError(absl::StrCat("the plan has ", microbatches, " microbatches per graph, not at least 1"));
  }
  if (depth >= 0 && plan.weight_slots >= 0 && gradient_slots >= 0 && plan.dedicated_gradient_slots >= 0) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("an option of the plan is negative: prefetch depth ", depth,
                                          ", weight slots ", plan.weight_slots, ", gradient slots ", gradient_slots,
                                          " and ", plan.dedicated_gradient_slots, " held"));
}

absl::Status CheckIndices(const Plan& plan) {
  const int64_t schedules = static_cast<int64_t>(plan.schedules.size());
  const auto optional = [&](int index) { return index == -1 || InRange(index, schedules); };
  if (!InRange(plan.first, schedules) || !InRange(plan.body, schedules) || !optional(plan.finish) ||
      !optional(plan.step)) {
    return absl::InternalError(absl::StrCat("first ", plan.first, ", body ", plan.body, ", finish ", plan.finish,
                                            " or step ", plan.step, " is not among the ", schedules, " schedules"));
  }
  for (const int last : {plan.finish, plan.step}) {
    if (last < 0 || (last != plan.first && last != plan.body && plan.finish != plan.step)) continue;
    return absl::InternalError(absl::StrCat("schedule ", last, " is more than one of first ", plan.first, ", body ",
                                            plan.body, ", finish ", plan.finish, " and step ", plan.step));
  }
  const size_t units = plan.model.units().size();
  if (plan.layout.units.size() != units || plan.unit_buffers.size() != units || plan.unit_policies.size() != units) {
    return absl::InternalError(absl::StrCat("layout, buffers and policies are of ", plan.layout.units.size(), ", ",
                                            plan.unit_buffers.size(), " and ", plan.unit_policies.size(),
                                            " units, the model has ", units));
  }
  for (size_t unit = 0; unit < units; ++unit) {
    const UnitLayout& layout = plan.layout.units[unit];
    const BufferId full = plan.unit_buffers[unit].unsharded_gradient;
    const bool complete = layout.gathered_offsets.size() >= layout.groups.size();
    // Where gradients are reduced once per step each unit that is trained sums its own, and nowhere else is such a sum.
    const bool sums =
        plan.options.reduce == Reduce::kOncePerStep && plan.step >= 0 &&
        std::any_of(layout.groups.begin(), layout.groups.end(), [](const FlatGroup& group) { return group.trainable; });
    const bool known = full.valid() == sums && (!sums || InRange(full, plan.buffers));
    const bool placed = std::all_of(layout.groups.begin(), layout.groups.end(), [&](const FlatGroup& group) {
      return std::all_of(group.parameters.begin(), group.parameters.end(), [&](const PlacedParameter& parameter) {
        return InRange(parameter.parameter, plan.model.parameters());
      });
    });
    if (complete && known && placed) continue;
    return absl::InternalError(absl::StrCat("layout and unsharded gradient of ", plan.model.units()[unit].name,
                                            " do not match its ", layout.groups.size(), " groups"));
  }
  return absl::OkStatus();
}

// As the options say, by the bytes of a gathered copy, as its groups give them.
absl::Status CheckPolicies(const Plan& plan) {
  for (size_t unit = 0; unit < plan.unit_policies.size(); ++unit) {
    const UnitLayout& layout = plan.layout.units[unit];
    int64_t bytes = 0;
    for (size_t g = 0; g < layout.groups.size(); ++g) {
      bytes =
          std::max(bytes, layout.gathered_offsets[g] + layout.groups[g].num_elements * SizeOf(layout.groups[g].dtype));
    }
    const UnitPolicy needed = {TransportsFor(plan.options.transports, bytes), *plan.options.sum};
    if (plan.unit_policies[unit] == needed) continue;
    const auto text = [](const UnitPolicy& policy) {
      return absl::StrCat(ToText(EveryUnit(policy.transports)), " and sum ", Name(policy.sum));
    };
    return absl::InternalError(absl::StrCat(plan.model.units()[unit].name, " has transports ",
                                            text(plan.unit_policies[unit]), ", but the options give it ",
                                            text(needed)));
  }
  return absl::OkStatus();
}

absl::Status CheckLayout(const Plan& plan) {
  int64_t elements = 0;  // of all groups
  for (size_t unit = 0; unit < plan.layout.units.size(); ++unit) {
    const UnitLayout& layout = plan.layout.units[unit];
    for (size_t i = 0; i < layout.groups.size(); ++i) {
      const FlatGroup& group = layout.groups[i];
      const std::string text = absl::StrCat("group ", i, " of ", plan.model.units()[unit].name);
      if (!IsKnown(group.dtype, DType::kUInt8) || !IsKnown(plan.reduce_dtype(group), DType::kUInt8)) {
        return absl::InternalError(absl::StrCat(text, " has a dtype that does not exist"));
      }
      if (!InRange(group.num_elements, kMaxLayout - elements) || !InRange(layout.gathered_offsets[i], kMaxLayout)) {
        return absl::InternalError(absl::StrCat(text, " has ", group.num_elements, " elements and is at byte ",
                                                layout.gathered_offsets[i], ", which is negative or too large"));
      }
      elements += group.num_elements;
      const int64_t ranks = plan.world_size();
      if (ranks < 1 || group.num_elements % ranks != 0 || group.shard_elements != group.num_elements / ranks) {
        return absl::InternalError(absl::StrCat(text, " has ", group.shard_elements, " of its ", group.num_elements,
                                                " elements on each of ", ranks, " ranks"));
      }
      for (const PlacedParameter& placed : group.parameters) {
        if (placed.first_element >= 0 && placed.num_elements >= 0 &&
            placed.first_element <= group.num_elements - placed.num_elements) {
          continue;
        }
        return absl::InternalError(absl::StrCat(plan.model.parameter(placed.parameter).spec.name, " of ",
                                                placed.num_elements, " elements at ", placed.first_element,
                                                " is not inside the ", group.num_elements, " elements of ", text));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMemory(const MemoryPlan& memory) {
  int64_t total = 0, total_bound = 0;
  for (int s = 0; s < kNumStorages; ++s) {
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
    const int64_t num_bytes = memory.num_bytes[s], bound = memory.lower_bound[s];
    if (num_bytes < 0 || num_bytes > kMax - total || bound < 0 || bound > kMax - total_bound) {
      return absl::InternalError(absl::StrCat(num_bytes, " bytes of storage ", Name(static_cast<Storage>(s)),
                                              ", at least ", bound, ", are negative, or exceed ", kMax,
                                              " with the storages before it"));
    }
    total += num_bytes;
    total_bound += bound;
  }
  return absl::OkStatus();
}

absl::Status CheckBuffers(const Plan& plan) {
  for (const Buffer& buffer : plan.buffers) {
    const int64_t storage = static_cast<int64_t>(buffer.storage);
    if (!InRange(storage, kNumStorages)) {
      return absl::InternalError(absl::StrCat(buffer.name, " is in storage ", storage, ", which does not exist"));
    }
    const std::string place = absl::StrCat(buffer.name, " of ", buffer.num_bytes, " bytes at offset ", buffer.offset);
    if (buffer.num_bytes < 0 || buffer.offset < 0 || buffer.offset % kBufferAlignment != 0) {
      return absl::InternalError(
          absl::StrCat(place, ": sizes are not negative and offsets are multiples of ", kBufferAlignment));
    }
    const int64_t available = plan.memory.num_bytes[storage];
    if (buffer.storage == Storage::kExternal || buffer.offset <= available - buffer.num_bytes) continue;
    return absl::InternalError(
        absl::StrCat(place, " is not inside the ", available, " bytes of storage ", Name(buffer.storage)));
  }
  return absl::OkStatus();
}

// ---- one command ----

// What a command names, and the lane on which it belongs. Communication has one lane for each communicator.
struct CommandForm {
  Lane lane = Lane::kCompute;
  std::optional<UnitId> unit = {};
  std::optional<CallId> call = {};
  std::optional<AxisId> axis = {};
  std::optional<int> slot = {};
  int64_t num_slots = 0;
  std::optional<Transport> transport = {}, needed_transport = {};
  std::optional<Sum> sum = {}, needed_sum = {};
};

CommandForm FormOf(const Plan& plan, const Command& command) {
  const int64_t gradient_slots = int64_t{*plan.options.gradient_slots} + plan.dedicated_gradient_slots;
  const auto policy = [&](UnitId unit) {
    return InRange(unit, plan.unit_policies) ? plan.unit_policies[unit.value()] : UnitPolicy();
  };
  return std::visit(
      Overloaded{
          [](const Begin&) { return CommandForm{}; },
          [](const NextMicrobatch&) { return CommandForm{}; },
          [](const StageInputs& c) { return CommandForm{.lane = c.position == 0 ? Lane::kCompute : Lane::kCopy}; },
          [&](const AllGather& c) {
            return CommandForm{.lane = Lane::kAllGather,
                               .unit = c.unit,
                               .axis = c.axis,
                               .slot = c.slot,
                               .num_slots = plan.weight_slots,
                               .transport = c.transport,
                               .needed_transport = policy(c.unit).transports.gather};
          },
          [](const Forward& c) { return CommandForm{.call = c.call}; },
          [](const Backward& c) { return CommandForm{.call = c.call}; },
          [](const PackGradients& c) { return CommandForm{.unit = c.unit}; },
          [&](const ReduceScatter& c) {
            return CommandForm{.lane = Lane::kReduceScatter,
                               .unit = c.unit,
                               .axis = c.axis,
                               .slot = c.slot == -1 ? std::nullopt : std::optional(c.slot),
                               .num_slots = gradient_slots,
                               .transport = c.transport,
                               .needed_transport = policy(c.unit).transports.exchange,
                               .sum = c.sum,
                               .needed_sum = policy(c.unit).sum};
          },
          [&](const Accumulate& c) {
            return CommandForm{
                .lane = Lane::kReduceScatter, .unit = c.unit, .sum = c.sum, .needed_sum = policy(c.unit).sum};
          },
          [](const RecordLoss&) { return CommandForm{}; },
          [](const SumNorm& c) { return CommandForm{.lane = Lane::kReduceScatter, .axis = c.axis}; },
          [](const UpdateParameters& c) { return CommandForm{.unit = c.unit}; },
          [](const RefreshShards& c) { return CommandForm{.unit = c.unit}; },
          [](const PublishMetrics&) { return CommandForm{}; },
          [](const End&) { return CommandForm{}; },
      },
      command);
}

// How many values the id of a use may have; -1 if it stands for nothing.
int64_t NumIds(const Plan& plan, Role role, std::optional<UnitId> unit) {
  const int64_t parameters = static_cast<int64_t>(plan.model.parameters().size());
  const int64_t groups =
      unit ? static_cast<int64_t>(plan.layout.units[unit->value()].groups.size()) : int64_t{INT32_MAX};
  switch (role) {
    case Role::kShard:
    case Role::kGathered:
    case Role::kReceived:
    case Role::kReduceBuffer:
    case Role::kAccumulator:
    case Role::kMaster:
    case Role::kOptimizerState:
      return groups;
    case Role::kNormPartials:
      return unit ? groups : -1;
    case Role::kParameter:
    case Role::kParameterGradient:
      return parameters;
    case Role::kInput:
    case Role::kOutput:
    case Role::kSaved:
    case Role::kState:
    case Role::kOutputGradient:
    case Role::kInputGradient:
    case Role::kStaging:
      return static_cast<int64_t>(plan.model.tensors().size());
    case Role::kScratch:
    case Role::kControl:
    case Role::kStepState:
    case Role::kNormParts:
    case Role::kMetrics:
      return -1;
  }
  return -1;
}

class ScheduleForm {
 public:
  ScheduleForm(const Plan& plan, const Schedule& schedule) : plan_(plan), schedule_(schedule) {}

  absl::Status Check() const {
    const size_t size = schedule_.commands.size();
    if (size < 2) return absl::InternalError(absl::StrCat("the schedule has ", size, " commands, not Begin and End"));
    for (size_t i = 0; i < size; ++i) {
      const CommandId id(static_cast<int64_t>(i));
      REPRISE_RETURN_IF_ERROR(CheckCommand(id));
      REPRISE_RETURN_IF_ERROR(CheckUses(id));
      REPRISE_RETURN_IF_ERROR(CheckWaits(id));
    }
    REPRISE_RETURN_IF_ERROR(CheckState(schedule_.start));
    REPRISE_RETURN_IF_ERROR(CheckState(schedule_.end));
    REPRISE_RETURN_IF_ERROR(CheckBesideCompute());
    return CheckRedundantWaits();
  }

 private:
  const ScheduledCommand& At(CommandId id) const { return schedule_.commands[id.value()]; }
  template <class... Parts>
  absl::Status Error(CommandId id, const Parts&... parts) const {
    return absl::InternalError(absl::StrCat(CommandText(plan_, schedule_, id), " ", parts...));
  }
  // For commands that name what does not exist, which cannot be described.
  template <class... Parts>
  static absl::Status Malformed(CommandId id, const Parts&... parts) {
    return absl::InternalError(absl::StrCat("command #", id.value(), " ", parts...));
  }

  absl::Status CheckCommand(CommandId id) const {
    const ScheduledCommand& command = At(id);
    const CommandForm form = FormOf(plan_, command.command);
    if (form.unit && !InRange(*form.unit, plan_.model.units())) {
      return Malformed(id, "names unit ", form.unit->value(), ", which does not exist");
    }
    if (form.call && !InRange(*form.call, plan_.model.calls())) {
      return Malformed(id, "names call ", form.call->value(), ", which does not exist");
    }
    if (form.axis && !InRange(*form.axis, plan_.axes)) {
      return Malformed(id, "names axis ", form.axis->value(), ", which does not exist");
    }
    if (!InRange(static_cast<int64_t>(command.lane), kNumLanes)) {
      return Malformed(id, "is on lane ", static_cast<int>(command.lane), ", which does not exist");
    }
    if (form.slot && !InRange(*form.slot, form.num_slots)) {
      return Error(id, "names slot ", *form.slot, ", but there are ", form.num_slots);
    }
    if (form.transport != form.needed_transport) {
      return Error(id, "has transport ", Name(*form.transport), ", but its unit has ", Name(*form.needed_transport));
    }
    if (form.sum != form.needed_sum) {
      return Error(id, "has sum ", Name(*form.sum), ", but its unit has ", Name(*form.needed_sum));
    }
    if (command.lane != form.lane) return Error(id, "belongs on lane ", Name(form.lane));
    const bool is_first = id.value() == 0, is_last = id.value() + 1 == static_cast<int64_t>(schedule_.commands.size());
    if (std::holds_alternative<Begin>(command.command) != is_first) {
      return Error(id, "is in the wrong place: the first command, and no other, is Begin");
    }
    if (std::holds_alternative<End>(command.command) != is_last) {
      return Error(id, "is in the wrong place: the last command, and no other, is End");
    }
    return absl::OkStatus();
  }

  absl::Status CheckUses(CommandId id) const {
    const ScheduledCommand& command = At(id);
    const CommandForm form = FormOf(plan_, command.command);
    const BufferId copy = GatheredBuffer(command);
    for (const BufferUse& use : command.uses) {
      if (!InRange(use.buffer, plan_.buffers)) {
        return Error(id, "uses buffer ", use.buffer.value(), ", which does not exist");
      }
      const Buffer& buffer = plan_.buffer(use.buffer);
      if (!IsKnown(use.access, Access::kUpdate) || !IsKnown(use.role, Role::kMetrics)) {
        return Error(id, "uses ", buffer.name, " with an access or a role that does not exist");
      }
      const int64_t num_ids = NumIds(plan_, use.role, form.unit);
      if (num_ids >= 0 && !InRange(use.id, num_ids)) {
        return Error(id, "uses ", buffer.name, " as ", Name(use.role), " ", use.id, ", which does not exist");
      }
      if (use.offset < 0 || use.num_bytes < 0 || use.offset > buffer.num_bytes - use.num_bytes) {
        return Error(id, "uses ", use.num_bytes, " bytes from ", use.offset, " of ", buffer.name, ", which has ",
                     buffer.num_bytes);
      }
      if (!use.is_own() && OrderedAxis(command.command) != use.peers) {
        return Error(id, "uses ", buffer.name, " of peers on axis ", use.peers.value(),
                     ", whose ranks it does not order");
      }
      if (use.role == Role::kGathered && (use.buffer != copy || use.access != Access::kAssign)) {
        return Error(id, "does not assign its gathered copy as one buffer, but also uses ", buffer.name);
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckWaits(CommandId id) const {
    const ScheduledCommand& command = At(id);
    std::array<bool, kNumLanes> waited = {};
    CommandId previous;
    for (const Wait& wait : command.waits) {
      if (!wait.command.valid() || wait.command >= id) {
        return Error(id, "waits for command ", wait.command.value(), ", which is not an earlier one");
      }
      if (wait.command <= previous) return Error(id, "has waits that are not sorted by command");
      previous = wait.command;
      const Lane lane = At(wait.command).lane;
      if (lane == command.lane) {
        return Error(id, "waits for ", CommandText(plan_, schedule_, wait.command), " on its own lane");
      }
      bool& seen = waited[static_cast<int>(lane)];
      if (seen) return Error(id, "waits twice for lane ", Name(lane));
      seen = true;
    }
    return absl::OkStatus();
  }

  absl::Status CheckState(const ScheduleState& state) const {
    if (state.gradients && plan_.options.reduce != Reduce::kOncePerStep) {
      return absl::InternalError("a state holds unsharded gradients, but the plan reduces every microbatch");
    }
    const int64_t gradient_slots = int64_t{*plan_.options.gradient_slots} + plan_.dedicated_gradient_slots;
    std::set<int> weights_taken;
    UnitId previous;
    for (const Resident& resident : state.residents) {
      REPRISE_RETURN_IF_ERROR(CheckHeld(resident.unit, resident.buffer, resident.slot, plan_.weight_slots, previous));
      previous = resident.unit;
      if (!weights_taken.insert(resident.slot).second) {
        return absl::InternalError(absl::StrCat("a state has two residents in weight slot ", resident.slot));
      }
    }
    std::set<int> gradients_taken;
    previous = UnitId();
    for (const OutstandingReduction& held : state.outstanding) {
      REPRISE_RETURN_IF_ERROR(CheckHeld(held.unit, held.buffer, held.slot, gradient_slots, previous));
      previous = held.unit;
      if (!gradients_taken.insert(held.slot).second) {
        return absl::InternalError(absl::StrCat("a state has two reductions in gradient slot ", held.slot));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckHeld(UnitId unit, BufferId buffer, int slot, int64_t num_slots, UnitId previous) const {
    if (!InRange(unit, plan_.model.units()) || !InRange(buffer, plan_.buffers) || !InRange(slot, num_slots)) {
      return absl::InternalError(absl::StrCat("a state names unit ", unit.value(), ", buffer ", buffer.value(),
                                              " and slot ", slot, ", which do not all exist"));
    }
    if (!IsTransient(plan_.buffer(buffer).storage)) {
      return absl::InternalError(absl::StrCat("a state holds ", plan_.buffer(buffer).name, ", which is persistent"));
    }
    if (unit > previous) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("a state is not sorted by unit at ", plan_.model.unit(unit).name));
  }

  absl::Status CheckBesideCompute() const {
    bool computes = false;
    for (size_t i = schedule_.commands.size(); i-- > 0;) {
      const Command& command = schedule_.commands[i].command;
      const auto* const accumulate = std::get_if<Accumulate>(&command);
      if (accumulate != nullptr && accumulate->beside_compute != computes) {
        return Error(CommandId(static_cast<int64_t>(i)), computes ? "is not marked as beside compute, which follows it"
                                                                  : "is beside compute, but none follows it");
      }
      computes = computes || std::holds_alternative<Forward>(command) || std::holds_alternative<Backward>(command);
    }
    return absl::OkStatus();
  }

  // A wait that lane order or another wait implies costs an edge and proves nothing.
  absl::Status CheckRedundantWaits() const {
    const CommandOrder order(schedule_);
    LaneCommands tails;
    for (size_t i = 0; i < schedule_.commands.size(); ++i) {
      const CommandId id(static_cast<int64_t>(i));
      CommandId& tail = internal::At(tails, At(id).lane);
      for (const Wait& wait : At(id).waits) {
        const auto implied_by = [&](CommandId other) {
          return other.valid() && other != wait.command && order.Before(wait.command, other);
        };
        CommandId reason = implied_by(tail) ? tail : CommandId();
        for (const Wait& other : At(id).waits) {
          if (implied_by(other.command)) reason = other.command;
        }
        if (!reason.valid()) continue;
        return Error(id, "waits for ", CommandText(plan_, schedule_, wait.command), ", which its order after ",
                     CommandText(plan_, schedule_, reason), " implies");
      }
      tail = id;
    }
    return absl::OkStatus();
  }

  const Plan& plan_;
  const Schedule& schedule_;
};

}  // namespace

absl::Status CheckForm(const Plan& plan) {
  REPRISE_RETURN_IF_ERROR(CheckOptions(plan));
  REPRISE_RETURN_IF_ERROR(CheckIndices(plan));
  REPRISE_RETURN_IF_ERROR(CheckLayout(plan));
  REPRISE_RETURN_IF_ERROR(CheckPolicies(plan));
  REPRISE_RETURN_IF_ERROR(CheckMemory(plan.memory));
  REPRISE_RETURN_IF_ERROR(CheckBuffers(plan));
  return CheckAccumulates(plan);
}

absl::Status CheckForm(const Plan& plan, const Schedule& schedule) {
  REPRISE_RETURN_IF_ERROR(ScheduleForm(plan, schedule).Check());
  return CheckAccumulates(plan, schedule);
}

}  // namespace reprise::internal
