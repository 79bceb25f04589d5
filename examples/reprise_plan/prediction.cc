#include "examples/reprise_plan/prediction.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

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

TraceNotes NotesOn(const Plan& plan, const CostModel& costs, const std::string& source) {
  TraceNotes notes = {
      {"prediction",
       "nothing was run; bytes over bandwidth, FLOPs over rate, and commands that run at once do not slow "
       "each other"},
      {"rates", absl::StrFormat("per rank: %g TFLOP/s, memory %g GB/s, gathers %g GB/s, reductions %g GB/s; %g us for "
                                "each collective, %g us for each other command",
                                costs.flops / 1e12, costs.memory_bandwidth / 1e9, costs.gather_bandwidth / 1e9,
                                costs.reduce_bandwidth / 1e9, costs.collective_us, costs.command_us)},
      {"source", source}};
  if (costs.ranks.has_value() && plan.world_size() > *costs.ranks) {
    notes.push_back(
        {"guess", absl::StrCat("for ", plan.world_size(),
                               " ranks the bandwidths are guesses: they were "
                               "measured with ",
                               *costs.ranks,
                               "; give --costs=FILE of step_bench --measure with as many ranks, or with the "
                               "bandwidths that you expect")});
  }
  return notes;
}

}  // namespace reprise
