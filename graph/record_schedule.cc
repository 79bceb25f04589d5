#include "graph/command_error.h"
#include "reprise/core/status_macros.h"
#include "reprise/graph/recorder.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<Executable>> RecordSchedule(const Plan& plan, const Schedule& schedule,
                                                           Recorder& recorder) {
  REPRISE_RETURN_IF_ERROR(recorder.Begin(schedule));
  for (size_t c = 0; c < schedule.commands.size(); ++c) {
    const CommandId id(static_cast<int64_t>(c));
    const ScheduledCommand& command = schedule.commands[c];
    REPRISE_RETURN_IF_ERROR(internal::AtCommand(plan, id, command.command, recorder.Record(id, command)));
  }
  return recorder.Finish();
}

}  // namespace reprise
