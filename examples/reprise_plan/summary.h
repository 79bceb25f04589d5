// A plan in a dozen numbers, for people.
#ifndef REPRISE_EXAMPLES_REPRISE_PLAN_SUMMARY_H_
#define REPRISE_EXAMPLES_REPRISE_PLAN_SUMMARY_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "reprise/core/plan.h"

namespace reprise {

// Appends a line: what it is, the bytes, and these in a unit that fits.
void AddBytes(absl::string_view name, int64_t bytes, std::string& out);

std::string SummaryTable(const Plan& plan, const PlanSummary& summary);

}  // namespace reprise

#endif  // REPRISE_EXAMPLES_REPRISE_PLAN_SUMMARY_H_
