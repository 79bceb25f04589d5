// A schedule as the verifier sees it: which commands are ordered, who uses each buffer, and words for messages. Derived
// from the plan's data, independently of the planner.
#ifndef REPRISE_CORE_VERIFIER_SCHEDULE_H_
#define REPRISE_CORE_VERIFIER_SCHEDULE_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "reprise/core/plan.h"

namespace reprise::internal {

// One command for each lane; invalid ids where there is none.
using LaneCommands = std::array<CommandId, kNumLanes>;
inline CommandId& At(LaneCommands& commands, Lane lane) { return commands[static_cast<int>(lane)]; }
inline CommandId At(const LaneCommands& commands, Lane lane) { return commands[static_cast<int>(lane)]; }

// A vector clock for each command over the lanes.
class CommandOrder {
 public:
  // Lanes are in range and waits name earlier commands.
  explicit CommandOrder(const Schedule& schedule);

  // Is `earlier` complete before `later` starts, in every order that lanes and waits allow? True for an invalid
  // `earlier`, false for a command and itself.
  bool Before(CommandId earlier, CommandId later) const {
    return !earlier.valid() || At(started_after_[later.value()], lanes_[earlier.value()]) >= earlier;
  }
  // Are all valid commands of `earlier` before `later`? The first that is not, or invalid.
  CommandId FirstNotBefore(const LaneCommands& earlier, CommandId later) const;
  // For each lane, the last command that is complete once `command` is.
  LaneCommands CompleteAfter(CommandId command) const;

 private:
  std::vector<Lane> lanes_;
  std::vector<LaneCommands> started_after_;
};

struct UseAt {
  CommandId command;
  const BufferUse* use;
};

struct ByteRange {
  int64_t first = 0, last = 0;  // last is not included
};

// Borrows the plan, which has passed CheckForm.
class CheckedSchedule {
 public:
  CheckedSchedule(const Plan& plan, const Schedule& schedule);

  const Plan& plan() const { return plan_; }
  const Schedule& schedule() const { return schedule_; }
  const CommandOrder& order() const { return order_; }
  const ScheduledCommand& command(CommandId id) const { return schedule_.commands[id.value()]; }
  CommandId first_command() const { return CommandId(0); }
  CommandId last_command() const { return CommandId(static_cast<int64_t>(schedule_.commands.size()) - 1); }
  // Uses of at least one byte, by command.
  absl::Span<const UseAt> UsesOf(BufferId buffer) const;
  // The bytes of which the command needs the value: none of scratch, and of a group's gradients not the padding.
  std::vector<ByteRange> NeededBytes(const UseAt& use) const;

  // Where a unit's gradients lie in its reduce buffer: groups start at multiples of kBufferAlignment.
  std::vector<ByteRange> ReduceBytes(UnitId unit) const;

  // "#3 forward c0 (compute)".
  std::string Text(CommandId command) const;

 private:
  const Plan& plan_;
  const Schedule& schedule_;
  CommandOrder order_;
  std::vector<int32_t> first_use_;  // by BufferId, and one past the end
  std::vector<UseAt> uses_;
  const std::vector<bool> has_gradient_;
};

inline bool Writes(const BufferUse& use) { return use.access != Access::kRead; }
inline ByteRange BytesOf(const BufferUse& use) { return {use.offset, use.offset + use.num_bytes}; }

// By ParameterId: some backward call of the plan writes its gradient. Of any plan, checked or not.
std::vector<bool> FindGradients(const Plan& plan);

// "#3 forward c0 (compute)".
std::string CommandText(const Plan& plan, const Schedule& schedule, CommandId command);
// "bytes [0, 256) of x".
std::string BytesText(const Plan& plan, BufferId buffer, ByteRange range);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_VERIFIER_SCHEDULE_H_
