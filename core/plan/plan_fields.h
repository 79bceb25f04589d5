// Commands and options as named values, so that text and JSON show the same ones under the same names.
#ifndef REPRISE_CORE_PLAN_PLAN_FIELDS_H_
#define REPRISE_CORE_PLAN_PLAN_FIELDS_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "reprise/core/plan.h"

namespace reprise::internal {

struct Field {
  absl::string_view name;
  std::variant<bool, int64_t, std::string> value;
};

struct CommandFields {
  absl::string_view kind;  // "all_gather"
  std::vector<Field> fields = {};
};
// Any ids: one that is out of range is shown as its number.
CommandFields FieldsOf(const Plan& plan, const Command& command);

// Every option, see PlanOptionTexts.
std::vector<Field> FieldsOf(const PlanOptions& options);

// The name of the element `id` of a list of the model or the plan, or "kind#number" if there is none.
std::string UnitName(const Plan& plan, UnitId id);
std::string CallName(const Plan& plan, CallId id);
std::string ParameterName(const Plan& plan, ParameterId id);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_PLAN_PLAN_FIELDS_H_
