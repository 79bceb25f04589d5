#include "graph/recorder.h"

#include "absl/strings/str_cat.h"
#include "graph/command_error.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {

absl::StatusOr<std::unique_ptr<Executable>> RecordSchedule(int schedule, Recorder& recorder) {
  const Plan& plan = *recorder.bindings()->plan;
  const int num_schedules = static_cast<int>(plan.schedules.size());
  if (recorder.index_ >= 0 || schedule < 0 || schedule >= num_schedules) {
    return absl::FailedPreconditionError(
        absl::StrCat("schedule ", schedule, " of ", num_schedules, " cannot be recorded",
                     recorder.index_ >= 0 ? absl::StrCat(" after ", recorder.index_) : "",
                     "; use a new recorder for each schedule"));
  }
  recorder.index_ = schedule;
  REPRISE_RETURN_IF_ERROR(recorder.Begin());
  const std::vector<ScheduledCommand>& commands = plan.schedules[schedule].commands;
  for (size_t c = 0; c < commands.size(); ++c) {
    const CommandId id(static_cast<int64_t>(c));
    REPRISE_RETURN_IF_ERROR(AtCommand(plan, id, commands[c].command, recorder.Record(id, commands[c])));
  }
  return recorder.Finish();
}

}  // namespace reprise::internal
