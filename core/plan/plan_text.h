// The lines of a plan's text that show commands, for what prints them one by one.
#ifndef REPRISE_CORE_PLAN_PLAN_TEXT_H_
#define REPRISE_CORE_PLAN_PLAN_TEXT_H_

#include <string>
#include <vector>

#include "reprise/core/plan.h"

namespace reprise::internal {

// One line for each command of a schedule, with its end of line: exactly those of ToText(plan).
std::vector<std::string> CommandLines(const Plan& plan, const Schedule& schedule);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_PLAN_PLAN_TEXT_H_
