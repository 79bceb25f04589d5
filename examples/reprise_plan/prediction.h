// When the commands of one step would run, by a cost model.
#ifndef REPRISE_EXAMPLES_REPRISE_PLAN_PREDICTION_H_
#define REPRISE_EXAMPLES_REPRISE_PLAN_PREDICTION_H_

#include <string>

#include "absl/status/statusor.h"
#include "reprise/core/cost_model.h"
#include "reprise/core/plan.h"
#include "reprise/core/timeline.h"

namespace reprise {

// `summary` is that of the plan. As PredictTimeline.
absl::StatusOr<Timeline> PredictStep(const Plan& plan, const PlanSummary& summary, const CostModel& costs);

// What a reader of a prediction must know: that it is one, its rates, whose they are (`source`), and whether they are
// guesses for as many ranks as the plan has.
TraceNotes NotesOn(const Plan& plan, const CostModel& costs, const std::string& source);

}  // namespace reprise

#endif  // REPRISE_EXAMPLES_REPRISE_PLAN_PREDICTION_H_
