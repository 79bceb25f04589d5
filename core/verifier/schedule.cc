#include "core/verifier/schedule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace reprise::internal {

CommandOrder::CommandOrder(const Schedule& schedule) {
  lanes_.reserve(schedule.commands.size());
  started_after_.reserve(schedule.commands.size());
  LaneCommands tails;
  for (const ScheduledCommand& command : schedule.commands) {
    LaneCommands start;
    const auto follow = [&](CommandId earlier) {
      if (!earlier.valid()) return;
      const LaneCommands complete = CompleteAfter(earlier);
      for (int lane = 0; lane < kNumLanes; ++lane) start[lane] = std::max(start[lane], complete[lane]);
    };
    follow(At(tails, command.lane));
    for (const Wait& wait : command.waits) follow(wait.command);
    At(tails, command.lane) = CommandId(static_cast<int64_t>(lanes_.size()));
    lanes_.push_back(command.lane);
    started_after_.push_back(start);
  }
}

CommandId CommandOrder::FirstNotBefore(const LaneCommands& earlier, CommandId later) const {
  for (const CommandId command : earlier) {
    if (!Before(command, later)) return command;
  }
  return CommandId();
}

LaneCommands CommandOrder::CompleteAfter(CommandId command) const {
  LaneCommands complete = started_after_[command.value()];
  At(complete, lanes_[command.value()]) = command;
  return complete;
}

CheckedSchedule::CheckedSchedule(const Plan& plan, const Schedule& schedule)
    : plan_(plan),
      schedule_(schedule),
      order_(schedule),
      first_use_(plan.buffers.size() + 1, 0),
      has_gradient_(FindGradients(plan)) {
  for (const ScheduledCommand& command : schedule.commands) {
    for (const BufferUse& use : command.uses) {
      if (use.num_bytes > 0) ++first_use_[use.buffer.value() + 1];
    }
  }
  for (size_t i = 1; i < first_use_.size(); ++i) first_use_[i] += first_use_[i - 1];
  uses_.resize(first_use_.back());
  std::vector<int32_t> next(first_use_.begin(), first_use_.end() - 1);
  for (size_t i = 0; i < schedule.commands.size(); ++i) {
    for (const BufferUse& use : schedule.commands[i].uses) {
      if (use.num_bytes > 0) uses_[next[use.buffer.value()]++] = {CommandId(static_cast<int64_t>(i)), &use};
    }
  }
}

absl::Span<const UseAt> CheckedSchedule::UsesOf(BufferId buffer) const {
  const int32_t first = first_use_[buffer.value()];
  return absl::MakeConstSpan(uses_).subspan(first, first_use_[buffer.value() + 1] - first);
}

std::vector<ByteRange> CheckedSchedule::NeededBytes(const UseAt& at) const {
  const BufferUse& use = *at.use;
  if (use.access == Access::kAssign || use.role == Role::kScratch) return {};
  const auto* const reduce = std::get_if<ReduceScatter>(&command(at.command).command);
  const auto* const accumulate = std::get_if<Accumulate>(&command(at.command).command);
  if (use.role != Role::kReduceBuffer || (reduce == nullptr && accumulate == nullptr)) return {BytesOf(use)};
  const UnitId unit = reduce != nullptr ? reduce->unit : accumulate->unit;
  const FlatGroup& group = plan_.layout.units[unit.value()].groups[use.id];
  const int64_t size = SizeOf(plan_.reduce_dtype(group));
  std::vector<ByteRange> bytes;
  for (const PlacedParameter& placed : group.parameters) {
    if (!has_gradient_[placed.parameter.value()]) continue;
    const int64_t first = use.offset + placed.first_element * size;
    bytes.push_back({first, first + placed.num_elements * size});
  }
  return bytes;
}

std::vector<ByteRange> CheckedSchedule::ReduceBytes(UnitId unit) const {
  std::vector<ByteRange> bytes;
  int64_t end = 0;
  for (const FlatGroup& group : plan_.layout.units[unit.value()].groups) {
    if (!group.trainable) continue;
    const int64_t offset = (end + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
    const int64_t size = SizeOf(plan_.reduce_dtype(group));
    for (const PlacedParameter& placed : group.parameters) {
      if (!has_gradient_[placed.parameter.value()]) continue;
      const int64_t first = offset + placed.first_element * size;
      bytes.push_back({first, first + placed.num_elements * size});
    }
    end = offset + group.num_elements * size;
  }
  return bytes;
}

std::string CheckedSchedule::Text(CommandId command) const { return CommandText(plan_, schedule_, command); }

std::vector<bool> FindGradients(const Plan& plan) {
  std::vector<bool> has_gradient(plan.model.parameters().size(), false);
  for (const Schedule& schedule : plan.schedules) {
    for (const ScheduledCommand& command : schedule.commands) {
      if (!std::holds_alternative<Backward>(command.command)) continue;
      for (const BufferUse& use : command.uses) {
        const bool known = use.id >= 0 && use.id < static_cast<int64_t>(has_gradient.size());
        if (use.role == Role::kParameterGradient && use.num_bytes > 0 && known) has_gradient[use.id] = true;
      }
    }
  }
  return has_gradient;
}

std::string CommandText(const Plan& plan, const Schedule& schedule, CommandId command) {
  const ScheduledCommand& scheduled = schedule.commands[command.value()];
  return absl::StrCat("#", command.value(), " ", Describe(plan, scheduled.command), " (", Name(scheduled.lane), ")");
}

std::string BytesText(const Plan& plan, BufferId buffer, ByteRange range) {
  return absl::StrCat("bytes [", range.first, ", ", range.last, ") of ", plan.buffer(buffer).name);
}

}  // namespace reprise::internal
