// A plan in a dozen numbers, for people.
#ifndef REPRISE_EXAMPLES_REPRISE_PLAN_SUMMARY_H_
#define REPRISE_EXAMPLES_REPRISE_PLAN_SUMMARY_H_

#include <string>

#include "reprise/core/plan.h"

namespace reprise {

std::string SummaryTable(const Plan& plan, const PlanSummary& summary);

}  // namespace reprise

#endif  // REPRISE_EXAMPLES_REPRISE_PLAN_SUMMARY_H_
