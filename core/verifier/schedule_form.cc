// Check::kForm of one schedule: what the other checks take for granted of its commands, uses, waits and states.
#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/verifier/checks.h"
#include "core/verifier/range.h"
#include "core/verifier/slots.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

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

absl::Status CheckForm(const Plan& plan, const Schedule& schedule) { return ScheduleForm(plan, schedule).Check(); }

}  // namespace reprise::internal
