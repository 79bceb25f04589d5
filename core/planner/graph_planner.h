// The schedules that compute: `first`, `body` and `finish`.
#ifndef REPRISE_CORE_PLANNER_GRAPH_PLANNER_H_
#define REPRISE_CORE_PLANNER_GRAPH_PLANNER_H_

#include <string>

#include "absl/status/status.h"
#include "core/planner/gradient_planner.h"
#include "core/planner/model_uses.h"
#include "core/planner/residency.h"
#include "reprise/core/plan.h"

namespace reprise::internal {

// kEmpty: nothing is resident, outstanding or summed. kSteady: as the graph before left it, see CarriedState.
enum class GraphStart { kEmpty, kSteady };

struct GraphInputs {
  const ModelUses& uses;
  const GradientPlan& gradients;
  const GatherPlan& gathers;
  const CarriedState& carried_state;
  bool training = true;
  GraphStart start = GraphStart::kEmpty;
};

// Appends a schedule of options.microbatches_per_graph microbatches to the plan.
absl::Status PlanGraph(Plan& plan, const std::string& name, const GraphInputs& inputs);

// Appends `finish` if something is left to reduce after the last microbatch, and sets Plan::finish.
absl::Status PlanFinish(Plan& plan, const GradientPlan& gradients, const CarriedState& carried_state);

// Appends `step` and sets Plan::step.
void PlanStep(Plan& plan);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_PLANNER_GRAPH_PLANNER_H_
