#include "core/predict/timeline_checks.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// NaN is no moment.
bool IsMoment(double microseconds) { return std::abs(microseconds) <= kMaxMicroseconds; }

template <class List>
bool IsIndex(int64_t index, const List& list) {
  return index >= 0 && static_cast<size_t>(index) < list.size();
}

absl::Status CheckSpan(const Plan& plan, const CommandSpan& span) {
  if (span.rank < 0 || span.rank >= plan.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat("is of rank ", span.rank, " of ", plan.world_size()));
  }
  if (!IsIndex(span.schedule, plan.schedules)) {
    return absl::InvalidArgumentError(
        absl::StrCat("is of schedule ", span.schedule, " of ", plan.schedules.size(), " in the plan"));
  }
  const Schedule& schedule = plan.schedules[span.schedule];
  if (!IsIndex(span.command.value(), schedule.commands)) {
    return absl::InvalidArgumentError(absl::StrCat("is of command ", span.command.value(), " of ",
                                                   schedule.commands.size(), " in schedule ", schedule.name));
  }
  if (span.replay < 0) return absl::InvalidArgumentError(absl::StrCat("is of replay ", span.replay));
  REPRISE_RETURN_IF_ERROR(CheckTimes(span.start_us, span.end_us));
  for (const Activity& activity : span.activities) {
    REPRISE_RETURN_IF_ERROR(CheckTimes(activity.start_us, activity.end_us));
    if (span.start_us <= activity.start_us && activity.end_us <= span.end_us) continue;
    return absl::InvalidArgumentError(absl::StrCat("goes from ", span.start_us, " to ", span.end_us,
                                                   " microseconds, but an activity of it from ", activity.start_us,
                                                   " to ", activity.end_us));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTimes(double start_us, double end_us) {
  if (IsMoment(start_us) && IsMoment(end_us) && start_us <= end_us) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("goes from ", start_us, " to ", end_us,
                                                 " microseconds; give two moments in this order, none beyond ",
                                                 kMaxMicroseconds));
}

absl::Status CheckTimeline(const Plan& plan, const Timeline& timeline) {
  for (size_t s = 0; s < timeline.spans.size(); ++s) {
    const absl::Status status = CheckSpan(plan, timeline.spans[s]);
    if (status.ok()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("span ", s, " of the timeline ", std::string(status.message()), "; give a timeline of this plan"));
  }
  return absl::OkStatus();
}

absl::Status CheckOrder(const Schedule& schedule) {
  for (size_t c = 0; c < schedule.commands.size(); ++c) {
    if (static_cast<int>(schedule.commands[c].lane) >= kNumLanes) {
      return absl::InvalidArgumentError(absl::StrCat("command ", c, " of schedule ", schedule.name, " is on lane ",
                                                     static_cast<int>(schedule.commands[c].lane),
                                                     ", which does not exist; give a plan that passes Verify"));
    }
    for (const Wait& wait : schedule.commands[c].waits) {
      if (wait.command.valid() && static_cast<size_t>(wait.command.value()) < c) continue;
      return absl::InvalidArgumentError(absl::StrCat("command ", c, " of schedule ", schedule.name,
                                                     " waits for command ", wait.command.value(),
                                                     ", which is none before it; give a plan that passes Verify"));
    }
  }
  return absl::OkStatus();
}

}  // namespace reprise::internal
