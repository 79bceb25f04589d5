#include "tests/testing/rearranged_schedule.h"

#include <algorithm>
#include <utility>

#include "core/planner/memory/memory_planner.h"
#include "core/planner/schedule_builder.h"

namespace reprise::testing {
namespace {

bool CanDerive(const Plan& plan, const Schedule& schedule) {
  for (const ScheduledCommand& command : schedule.commands) {
    if (static_cast<int>(command.lane) >= kNumLanes) return false;
    for (const BufferUse& use : command.uses) {
      if (!use.buffer.valid() || use.buffer.value() >= static_cast<int64_t>(plan.buffers.size())) return false;
      const int64_t size = plan.buffer(use.buffer).num_bytes;
      if (use.offset < 0 || use.num_bytes < 0 || use.offset > size - use.num_bytes) return false;
    }
  }
  const auto& commands = schedule.commands;
  return commands.size() >= 2 && std::holds_alternative<Begin>(commands.front().command) &&
         std::holds_alternative<End>(commands.back().command);
}

}  // namespace

void Rearranged::Finish() {
  std::vector<CommandId> places(schedule_.commands.size());  // by what the command was
  schedule_.commands.clear();
  for (Entry& entry : commands_) {
    std::vector<Wait> waits;
    for (Wait wait : entry.command.waits) {
      wait.command = places[wait.command.value()];
      if (wait.command.valid()) waits.push_back(wait);
    }
    std::sort(waits.begin(), waits.end(), [](const Wait& a, const Wait& b) { return a.command < b.command; });
    entry.command.waits = std::move(waits);
    places[entry.was] = CommandId(static_cast<int64_t>(schedule_.commands.size()));
    schedule_.commands.push_back(std::move(entry.command));
  }
}

void DeriveWaits(Plan& plan, Schedule& schedule) {
  for (const Schedule& other : plan.schedules) {
    if (!CanDerive(plan, other)) return;
  }
  internal::ScheduleBuilder builder;
  for (size_t c = 1; c + 1 < schedule.commands.size(); ++c) {
    ScheduledCommand& command = schedule.commands[c];
    std::vector<CommandId> after;
    for (const Wait& wait : command.waits) {
      if (wait.reason == WaitReason::kOrder && wait.command.value() < static_cast<int64_t>(c)) {
        after.push_back(wait.command);
      }
    }
    builder.Add(std::move(command.command), command.lane, std::move(command.uses), after);
  }
  schedule.commands = builder.Finish();
  bool computes = false;
  for (size_t c = schedule.commands.size(); c-- > 0;) {
    Command& command = schedule.commands[c].command;
    if (auto* accumulate = std::get_if<Accumulate>(&command)) accumulate->beside_compute = computes;
    computes = computes || std::holds_alternative<Forward>(command) || std::holds_alternative<Backward>(command);
  }
  (void)internal::PlaceBuffers(plan);
}

}  // namespace reprise::testing
