#include "examples/reprise_plan/prediction.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace reprise {

absl::StatusOr<Timeline> PredictStep(const Plan& plan, const PlanSummary& summary, const CostModel& costs) {
  // Before the list of schedules takes memory.
  if (summary.commands > kMaxPredictedCommands) {
    return absl::InvalidArgumentError(absl::StrCat("a step of ", summary.microbatches, " microbatches has ",
                                                   summary.commands, " commands, but at most ", kMaxPredictedCommands,
                                                   " are predicted; give fewer microbatches"));
  }
  std::vector<int> schedules = {plan.first};
  const int graphs = summary.microbatches / plan.options.microbatches_per_graph.value_or(1);
  schedules.insert(schedules.end(), graphs - 1, plan.body);
  for (const int last : {plan.finish, plan.step}) {
    if (last >= 0) schedules.push_back(last);
  }
  return PredictTimeline(plan, schedules, costs);
}

}  // namespace reprise
