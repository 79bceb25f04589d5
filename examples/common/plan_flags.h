// The options of a plan as flags, the same in every program: one for each of PlanOptionTexts but optimizer_states,
// which the optimizer says.
#ifndef REPRISE_EXAMPLES_COMMON_PLAN_FLAGS_H_
#define REPRISE_EXAMPLES_COMMON_PLAN_FLAGS_H_

#include "absl/status/statusor.h"
#include "reprise/core/plan_options.h"

namespace reprise::examples {

// `options`, the program's own choices, with those of the flags that are given in their place. InvalidArgument, by the
// flag's name, for a text that is no value.
absl::StatusOr<PlanOptions> ReadPlanFlags(PlanOptions options);

}  // namespace reprise::examples

#endif  // REPRISE_EXAMPLES_COMMON_PLAN_FLAGS_H_
