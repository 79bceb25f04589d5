// What is asked of plans and timelines before figures are derived from them.
#ifndef REPRISE_CORE_PREDICT_TIMELINE_CHECKS_H_
#define REPRISE_CORE_PREDICT_TIMELINE_CHECKS_H_

#include "absl/status/status.h"
#include "reprise/core/cost_model.h"
#include "reprise/core/plan.h"
#include "reprise/core/timeline.h"

namespace reprise::internal {

// Microseconds, either side of 0: 143 years, up to which a double tells them apart and int64 holds the nanoseconds
// between two moments.
inline constexpr double kMaxMicroseconds = 0x1p52;

// InvalidArgument unless both are at most kMaxMicroseconds and the end is not before the start.
absl::Status CheckTimes(double start_us, double end_us);
// InvalidArgument, naming the span, if one is of no command, rank or replay, its times are not in order, or an activity
// lies outside it.
absl::Status CheckTimeline(const Plan& plan, const Timeline& timeline);
// InvalidArgument for a rate that is not positive and finite, and another figure that is negative or not finite.
absl::Status CheckFigures(const CostModel& costs);
// InvalidArgument if a wait names no earlier command or a lane does not exist.
absl::Status CheckOrder(const Schedule& schedule);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_PREDICT_TIMELINE_CHECKS_H_
