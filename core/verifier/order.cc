// Check::kOrder, kFork and kJoin: the limits of the plan, and the way in and out of every lane.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/verifier/checks.h"
#include "core/verifier/slots.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

absl::string_view UnitName(const CheckedSchedule& schedule, UnitId unit) {
  return schedule.plan().model.unit(unit).name;
}

absl::Status CheckWeightSlot(const CheckedSchedule& schedule, int slot, const std::vector<Copy>& copies) {
  for (size_t i = 1; i < copies.size(); ++i) {
    const CommandId reader = schedule.order().FirstNotBefore(copies[i - 1].last_readers, copies[i].gather);
    if (!reader.valid()) continue;
    return absl::InternalError(absl::StrCat(schedule.Text(copies[i].gather), " takes weight slot ", slot, " from ",
                                            UnitName(schedule, copies[i - 1].unit), ", but no wait orders it after ",
                                            schedule.Text(reader), ", which reads the copy in it"));
  }
  return absl::OkStatus();
}

absl::Status CheckGradientSlot(const CheckedSchedule& schedule, int slot, const std::vector<ReduceBuffer>& gradients) {
  for (size_t i = 1; i < gradients.size(); ++i) {
    const ReduceBuffer& previous = gradients[i - 1];
    if (!gradients[i].first_writer.valid()) {
      return absl::InternalError(
          absl::StrCat("the schedule starts with the gradients of ", UnitName(schedule, previous.unit), " and ",
                       UnitName(schedule, gradients[i].unit), " and reduces both in gradient ", "slot ", slot));
    }
    const std::string start = absl::StrCat(schedule.Text(gradients[i].first_writer), " takes gradient slot ", slot,
                                           " from ", UnitName(schedule, previous.unit));
    if (!previous.reduce.valid()) return absl::InternalError(absl::StrCat(start, ", which is not reduced before"));
    if (schedule.order().Before(previous.last_reader, gradients[i].first_writer)) continue;
    return absl::InternalError(
        absl::StrCat(start, ", but no wait orders it after ", schedule.Text(previous.last_reader)));
  }
  return absl::OkStatus();
}

bool ReadsWeights(const Plan& plan, const ScheduledCommand& command) {
  return std::any_of(command.uses.begin(), command.uses.end(), [&](const BufferUse& use) {
    return use.role == Role::kParameter && plan.buffer(use.buffer).storage != Storage::kWeights;
  });
}

// Executions of calls that read gathered weights, forward and backward, in issue order: what prefetch depth counts.
struct Accesses {
  std::vector<CommandId> commands;
  // By command: the access it belongs to; -1: none. A recomputation belongs to the backward call that follows it.
  std::vector<int> of_command;
};

Accesses FindAccesses(const Plan& plan, const Schedule& schedule) {
  Accesses accesses;
  bool reads = false;
  accesses.of_command.assign(schedule.commands.size(), -1);
  for (size_t i = 0; i < schedule.commands.size(); ++i) {
    const Command& command = schedule.commands[i].command;
    const Forward* forward = std::get_if<Forward>(&command);
    if (forward == nullptr && !std::holds_alternative<Backward>(command)) continue;
    accesses.of_command[i] = static_cast<int>(accesses.commands.size());
    reads = reads || ReadsWeights(plan, schedule.commands[i]);
    if (forward != nullptr && forward->recompute) continue;
    if (std::exchange(reads, false)) accesses.commands.push_back(CommandId(static_cast<int64_t>(i)));
  }
  return accesses;
}

absl::Status CheckPrefetch(const CheckedSchedule& schedule, const Slots<Copy>& slots) {
  const Accesses accesses = FindAccesses(schedule.plan(), schedule.schedule());
  const int64_t depth = *schedule.plan().options.prefetch_depth;
  for (const auto& [slot, copies] : slots) {
    for (const Copy& copy : copies) {
      if (!copy.gather.valid() || !copy.first_reader.valid()) continue;
      const int64_t limit = accesses.of_command[copy.first_reader.value()] - 1 - depth;
      if (limit < 0) continue;
      const CommandId before = accesses.commands[limit];
      if (schedule.order().Before(before, copy.gather)) continue;
      return absl::InternalError(absl::StrCat(schedule.Text(copy.gather), " for ", schedule.Text(copy.first_reader),
                                              " runs ahead of prefetch depth ", depth, ": no wait orders it after ",
                                              schedule.Text(before)));
    }
  }
  return absl::OkStatus();
}

// The first commands of the lanes, or the last ones.
enum class Side { kFirst, kLast };
LaneCommands Ends(const Schedule& schedule, Side side) {
  LaneCommands ends;
  for (size_t i = 0; i < schedule.commands.size(); ++i) {
    CommandId& end = At(ends, schedule.commands[i].lane);
    if (side == Side::kLast || !end.valid()) end = CommandId(static_cast<int64_t>(i));
  }
  return ends;
}

// A reduce buffer takes a slot; an unsharded gradient that is reduced where it is takes none.
absl::Status CheckTaken(const CheckedSchedule& schedule) {
  const Plan& plan = schedule.plan();
  for (size_t i = 0; i < schedule.schedule().commands.size(); ++i) {
    const CommandId id(static_cast<int64_t>(i));
    const auto* const reduce = std::get_if<ReduceScatter>(&schedule.command(id).command);
    if (reduce == nullptr) continue;
    for (const BufferUse& use : schedule.command(id).uses) {
      const Buffer& source = plan.buffer(use.buffer);
      if (use.role != Role::kReduceBuffer || IsTransient(source.storage) == (reduce->slot >= 0)) continue;
      return absl::InternalError(absl::StrCat(schedule.Text(id), reduce->slot >= 0 ? " names a" : " names no",
                                              " gradient slot, but ", source.name,
                                              reduce->slot >= 0 ? " takes none" : " takes one"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSlots(const CheckedSchedule& schedule) {
  REPRISE_RETURN_IF_ERROR(CheckTaken(schedule));
  const Slots<Copy> weights = WeightSlots(schedule);
  for (const auto& [slot, copies] : weights) REPRISE_RETURN_IF_ERROR(CheckWeightSlot(schedule, slot, copies));
  for (const auto& [slot, gradients] : GradientSlots(schedule)) {
    REPRISE_RETURN_IF_ERROR(CheckGradientSlot(schedule, slot, gradients));
  }
  return CheckPrefetch(schedule, weights);
}

absl::Status CheckForks(const CheckedSchedule& schedule) {
  for (const CommandId first : Ends(schedule.schedule(), Side::kFirst)) {
    if (!first.valid() || first == schedule.first_command()) continue;
    if (schedule.order().Before(schedule.first_command(), first)) continue;
    return absl::InternalError(absl::StrCat(schedule.Text(first), " is the first command of its lane, but no wait ",
                                            "orders it after ", schedule.Text(schedule.first_command())));
  }
  return absl::OkStatus();
}

absl::Status CheckJoins(const CheckedSchedule& schedule) {
  for (const CommandId last : Ends(schedule.schedule(), Side::kLast)) {
    if (!last.valid() || last == schedule.last_command()) continue;
    if (schedule.order().Before(last, schedule.last_command())) continue;
    return absl::InternalError(absl::StrCat(schedule.Text(last),
                                            " is the last command of its lane, but no wait orders ",
                                            schedule.Text(schedule.last_command()), " after it"));
  }
  return absl::OkStatus();
}

}  // namespace reprise::internal
