// What is asked of plans and timelines before figures are derived from them.
#ifndef REPRISE_CORE_TIMELINE_CHECKS_H_
#define REPRISE_CORE_TIMELINE_CHECKS_H_

#include "absl/status/status.h"
#include "reprise/core/plan.h"
#include "reprise/core/timeline.h"

namespace reprise::internal {

// Microseconds, either side of 0: 285 years, up to which a double tells them apart and int64 holds nanoseconds.
inline constexpr double kMaxMicroseconds = 0x1p53;

// InvalidArgument unless both are at most kMaxMicroseconds and the end is not before the start.
absl::Status CheckTimes(double start_us, double end_us);
// InvalidArgument, naming the span, if one is of no command or rank of the plan, or its times are not in order.
absl::Status CheckTimeline(const Plan& plan, const Timeline& timeline);
// InvalidArgument if a wait names no earlier command.
absl::Status CheckWaits(const Schedule& schedule);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_TIMELINE_CHECKS_H_
