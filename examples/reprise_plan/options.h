// Which options made a plan what it is.
#ifndef REPRISE_EXAMPLES_REPRISE_PLAN_OPTIONS_H_
#define REPRISE_EXAMPLES_REPRISE_PLAN_OPTIONS_H_

#include <string>

#include "reprise/core/plan.h"

namespace reprise {

// The options in force, and those of `asked`, which made the plan, that had no effect or less than was asked for, each
// with the reason; these are found by planning without them, unless the plan is large. `training`: made by
// PlanTraining, otherwise by PlanForward. `usual`: the options where no flag is given. `idle`: lines of that kind that
// are known already.
std::string OptionsTable(const Plan& plan, const PlanOptions& asked, const PlanOptions& usual, bool training,
                         std::string idle);

}  // namespace reprise

#endif  // REPRISE_EXAMPLES_REPRISE_PLAN_OPTIONS_H_
