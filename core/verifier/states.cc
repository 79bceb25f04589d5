// Check::kSuccession: what a schedule says of its start and end is true, and graphs that may follow one another agree.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/verifier/byte_map.h"
#include "core/verifier/checks.h"
#include "core/verifier/slots.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

absl::string_view NameOfUnit(const Plan& plan, UnitId unit) { return plan.model.unit(unit).name; }

// ---- one schedule ----

// Everything in `needed` must have been written by the uses of the buffer from `since` on.
absl::Status CheckWritten(const CheckedSchedule& schedule, BufferId buffer, CommandId since,
                          const std::vector<ByteRange>& needed) {
  ByteMap<bool> written(schedule.plan().buffer(buffer).num_bytes, false);
  for (const UseAt& use : schedule.UsesOf(buffer)) {
    if (use.command < since || !Writes(*use.use)) continue;
    written.Assign(use.use->offset, use.use->offset + use.use->num_bytes, true);
  }
  absl::Status status;
  for (const ByteRange& range : needed) {
    written.Visit(range.first, range.last, [&](int64_t first, int64_t last, bool was_written) {
      if (!status.ok() || was_written) return;
      status =
          absl::InternalError(absl::StrCat("the end state holds ", BytesText(schedule.plan(), buffer, {first, last}),
                                           ", which the schedule does not write"));
    });
  }
  return status;
}

std::vector<ByteRange> GatheredBytes(const Plan& plan, UnitId unit) {
  const UnitLayout& layout = plan.layout.units[unit.value()];
  std::vector<ByteRange> bytes;
  for (size_t i = 0; i < layout.groups.size(); ++i) {
    const FlatGroup& group = layout.groups[i];
    const int64_t first = layout.gathered_offsets[i];
    bytes.push_back({first, first + group.num_elements * SizeOf(group.dtype)});
  }
  return bytes;
}

absl::Status CheckEndResidents(const CheckedSchedule& schedule) {
  const Slots<Copy> slots = WeightSlots(schedule);
  for (const Resident& resident : schedule.schedule().end.residents) {
    const absl::Span<const Copy> copies = InSlot(slots, resident.slot);
    const absl::string_view unit = NameOfUnit(schedule.plan(), resident.unit);
    if (copies.empty() || copies.back().unit != resident.unit || copies.back().buffer != resident.buffer) {
      return absl::InternalError(
          absl::StrCat("the end state says that ", unit, " is resident in weight slot ", resident.slot, " as ",
                       schedule.plan().buffer(resident.buffer).name, ", but the slot ends with ",
                       copies.empty() ? "nothing" : NameOfUnit(schedule.plan(), copies.back().unit)));
    }
    if (!copies.back().gather.valid()) continue;
    REPRISE_RETURN_IF_ERROR(
        CheckWritten(schedule, resident.buffer, copies.back().gather, GatheredBytes(schedule.plan(), resident.unit)));
  }
  return absl::OkStatus();
}

// Positions count from the first microbatch of the latest replay that has any.
int CarriedPosition(const CheckedSchedule& schedule) {
  return schedule.schedule().microbatches > 0 ? -1 : *schedule.plan().options.microbatches_per_graph - 1;
}

// What the schedule starts with is reduced, before it is written again, as a gradient of the replay before.
absl::Status CheckStartReductions(const CheckedSchedule& schedule, const Slots<ReduceBuffer>& slots) {
  for (const OutstandingReduction& reduction : schedule.schedule().start.outstanding) {
    const absl::Span<const ReduceBuffer> slot = InSlot(slots, reduction.slot);
    const auto gradient = std::find_if(slot.begin(), slot.end(), [&](const ReduceBuffer& other) {
      return other.unit == reduction.unit && other.buffer == reduction.buffer && !other.first_writer.valid();
    });
    const std::string start =
        absl::StrCat("the start state leaves the reduction of ", NameOfUnit(schedule.plan(), reduction.unit),
                     " in gradient slot ", reduction.slot);
    if (gradient == slot.end()) return absl::InternalError(absl::StrCat(start, ", but the schedule does not do it"));
    const auto& reduce = std::get<ReduceScatter>(schedule.command(gradient->reduce).command);
    if (reduce.position == CarriedPosition(schedule)) continue;
    return absl::InternalError(absl::StrCat(start, ", but ", schedule.Text(gradient->reduce), " is at position ",
                                            reduce.position, " and not ", CarriedPosition(schedule)));
  }
  return absl::OkStatus();
}

absl::Status CheckEndReductions(const CheckedSchedule& schedule, const Slots<ReduceBuffer>& slots) {
  for (const OutstandingReduction& reduction : schedule.schedule().end.outstanding) {
    const absl::Span<const ReduceBuffer> slot = InSlot(slots, reduction.slot);
    const auto gradient = std::find_if(slot.begin(), slot.end(), [&](const ReduceBuffer& other) {
      return other.buffer == reduction.buffer && !other.reduce.valid();
    });
    if (gradient == slot.end()) {
      return absl::InternalError(absl::StrCat(
          "the end state leaves the reduction of ", NameOfUnit(schedule.plan(), reduction.unit), " in gradient slot ",
          reduction.slot, ", but the schedule writes no gradient there that it does not reduce"));
    }
    REPRISE_RETURN_IF_ERROR(
        CheckWritten(schedule, reduction.buffer, gradient->first_writer, ReduceBytes(schedule.plan(), reduction.unit)));
  }
  return absl::OkStatus();
}

// A packed gradient that is neither reduced nor left to the next graph would be lost.
absl::Status CheckPackedGradients(const CheckedSchedule& schedule) {
  const Schedule& data = schedule.schedule();
  std::vector<CommandId> packed(schedule.plan().buffers.size());  // since its last reduction
  for (size_t i = 0; i < data.commands.size(); ++i) {
    const Command& command = data.commands[i].command;
    for (const BufferUse& use : data.commands[i].uses) {
      if (use.role != Role::kReduceBuffer) continue;
      CommandId& pack = packed[use.buffer.value()];
      if (std::holds_alternative<PackGradients>(command)) pack = CommandId(static_cast<int64_t>(i));
      if (std::holds_alternative<ReduceScatter>(command)) pack = CommandId();
    }
  }
  for (const OutstandingReduction& reduction : data.end.outstanding) packed[reduction.buffer.value()] = CommandId();
  for (const CommandId pack : packed) {
    if (!pack.valid()) continue;
    return absl::InternalError(
        absl::StrCat("the gradient of ", schedule.Text(pack), " is neither reduced nor in the end state"));
  }
  return absl::OkStatus();
}

// Is a read of the unit's unsharded gradient the one that hands on its sum? A reduction reads none but its unit's.
bool Takes(const Command& command, UnitId unit) {
  const auto* const pack = std::get_if<PackGradients>(&command);
  return pack != nullptr ? pack->unit == unit : std::holds_alternative<ReduceScatter>(command);
}

// A unsharded gradient is only added to until its unit is packed or reduced, which is so by the end unless the next
// graph goes on with it.
absl::Status CheckSum(const CheckedSchedule& schedule, UnitId unit, BufferId gradient,
                      const std::vector<ByteRange>& summed) {
  const Plan& plan = schedule.plan();
  ByteMap<bool> holds(plan.buffer(gradient).num_bytes, false);  // a sum that nothing has taken
  if (schedule.schedule().start.gradients) {
    for (const ByteRange& range : summed) holds.Assign(range.first, range.last, true);
  }
  absl::Status status;
  for (const UseAt& use : schedule.UsesOf(gradient)) {
    const auto [first, last] = BytesOf(*use.use);
    if (use.use->access == Access::kAssign) {
      holds.Visit(first, last, [&](int64_t from, int64_t to, bool held) {
        if (!status.ok() || !held) return;
        status = absl::InternalError(absl::StrCat(schedule.Text(use.command), " assigns ",
                                                  BytesText(plan, gradient, {from, to}),
                                                  ", which hold a sum that is not reduced"));
      });
    }
    if (Writes(*use.use)) holds.Assign(first, last, true);
    if (!Writes(*use.use) && Takes(schedule.command(use.command).command, unit)) holds.Assign(first, last, false);
  }
  if (schedule.schedule().end.gradients) return status;
  holds.Visit(0, plan.buffer(gradient).num_bytes, [&](int64_t first, int64_t last, bool held) {
    if (!status.ok() || !held) return;
    status = absl::InternalError(absl::StrCat("the sum in ", BytesText(plan, gradient, {first, last}),
                                              " is neither reduced nor in the end state"));
  });
  return status;
}

// By buffer: what the schedules that leave unsharded gradients write there.
std::vector<std::vector<ByteRange>> SummedBytes(const Plan& plan) {
  std::vector<std::vector<ByteRange>> bytes(plan.buffers.size());
  for (const Schedule& schedule : plan.schedules) {
    if (!schedule.end.gradients) continue;
    for (const ScheduledCommand& command : schedule.commands) {
      for (const BufferUse& use : command.uses) {
        if (use.role == Role::kParameterGradient && Writes(use)) bytes[use.buffer.value()].push_back(BytesOf(use));
      }
    }
  }
  return bytes;
}

absl::Status CheckFullGradients(const CheckedSchedule& schedule) {
  const Plan& plan = schedule.plan();
  const std::vector<std::vector<ByteRange>> summed = SummedBytes(plan);
  for (size_t u = 0; u < plan.unit_buffers.size(); ++u) {
    const UnitId unit(static_cast<int64_t>(u));
    const BufferId gradient = plan.unit_buffers[u].unsharded_gradient;
    if (!gradient.valid()) continue;
    REPRISE_RETURN_IF_ERROR(CheckSum(schedule, unit, gradient, summed[gradient.value()]));
    if (!schedule.schedule().end.gradients || schedule.schedule().start.gradients) continue;
    REPRISE_RETURN_IF_ERROR(
        CheckWritten(schedule, gradient, schedule.first_command(), UnshardedGradientBytes(plan, unit)));
  }
  return absl::OkStatus();
}

// ---- one after another ----

// Lists of a state are sorted by unit.
template <class T>
bool Contains(const std::vector<T>& list, const T& element) {
  const auto found =
      std::lower_bound(list.begin(), list.end(), element, [](const T& a, const T& b) { return a.unit < b.unit; });
  return found != list.end() && *found == element;
}

absl::Status CheckFollows(const Plan& plan, const Schedule& earlier, const Schedule& later) {
  const std::string start = absl::StrCat(later.name, " may follow ", earlier.name, ", but ");
  for (const Resident& resident : later.start.residents) {
    if (Contains(earlier.end.residents, resident)) continue;
    return absl::InternalError(absl::StrCat(
        start, "it starts with ", NameOfUnit(plan, resident.unit), " resident in weight slot ", resident.slot, " as ",
        plan.buffer(resident.buffer).name, ", which ", earlier.name, " does not end with"));
  }
  for (const OutstandingReduction& reduction : later.start.outstanding) {
    if (Contains(earlier.end.outstanding, reduction)) continue;
    return absl::InternalError(absl::StrCat(start, "it starts with the reduction of ", NameOfUnit(plan, reduction.unit),
                                            " in gradient slot ", reduction.slot, ", which ", earlier.name,
                                            " does not leave"));
  }
  for (const OutstandingReduction& reduction : earlier.end.outstanding) {
    if (Contains(later.start.outstanding, reduction)) continue;
    return absl::InternalError(absl::StrCat(start, "it does not take over the reduction of ",
                                            NameOfUnit(plan, reduction.unit), " in gradient slot ", reduction.slot));
  }
  if (earlier.end.gradients == later.start.gradients) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(start, later.start.gradients ? "it starts with unsharded gradients, which the other does not leave"
                                                : "it does not take over the unsharded gradients"));
}

}  // namespace

absl::Status CheckStates(const CheckedSchedule& schedule) {
  const Slots<ReduceBuffer> gradients = GradientSlots(schedule);
  REPRISE_RETURN_IF_ERROR(CheckEndResidents(schedule));
  REPRISE_RETURN_IF_ERROR(CheckStartReductions(schedule, gradients));
  REPRISE_RETURN_IF_ERROR(CheckEndReductions(schedule, gradients));
  REPRISE_RETURN_IF_ERROR(CheckPackedGradients(schedule));
  return CheckFullGradients(schedule);
}

absl::Status CheckSuccession(const Plan& plan) {
  const Schedule& first = plan.schedules[plan.first];
  const Schedule& body = plan.schedules[plan.body];
  // Nothing is held before the first replay or after a change of parameters.
  const Schedule nothing = {.name = "a change of parameters"};
  REPRISE_RETURN_IF_ERROR(CheckFollows(plan, nothing, first));
  REPRISE_RETURN_IF_ERROR(CheckFollows(plan, first, body));
  REPRISE_RETURN_IF_ERROR(CheckFollows(plan, body, body));
  if (plan.finish >= 0) {
    REPRISE_RETURN_IF_ERROR(CheckFollows(plan, first, plan.schedules[plan.finish]));
    REPRISE_RETURN_IF_ERROR(CheckFollows(plan, body, plan.schedules[plan.finish]));
  }
  if (plan.step < 0) return absl::OkStatus();
  const Schedule& step = plan.schedules[plan.step];
  if (plan.finish >= 0) {
    REPRISE_RETURN_IF_ERROR(CheckFollows(plan, plan.schedules[plan.finish], step));
  } else {
    REPRISE_RETURN_IF_ERROR(CheckFollows(plan, first, step));
    REPRISE_RETURN_IF_ERROR(CheckFollows(plan, body, step));
  }
  if (!step.end.residents.empty()) {
    return absl::InternalError(absl::StrCat(step.name, " changes the weights, but ends with ",
                                            NameOfUnit(plan, step.end.residents[0].unit), " resident"));
  }
  if (!step.start.outstanding.empty() || step.start.gradients) {
    return absl::InternalError(
        absl::StrCat(step.name, " reads the summed gradients, but starts before all are reduced"));
  }
  return CheckFollows(plan, step, first);
}

}  // namespace reprise::internal
