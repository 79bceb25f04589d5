#include "graph/comm/launch_variables.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/quoted.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {

bool LaunchVariables::Has(const char* name) const {
  const char* value = lookup_(name);
  return value != nullptr && *value != '\0';
}

std::string LaunchVariables::Text(const char* name) const {
  const char* value = lookup_(name);
  return value == nullptr ? "" : value;
}

const char* LaunchVariables::FirstOf(std::initializer_list<const char*> names) const {
  for (const char* name : names) {
    if (Has(name)) return name;
  }
  return nullptr;
}

absl::StatusOr<int> LaunchVariables::Number(const char* name, int low, int high) const {
  REPRISE_ASSIGN_OR_RETURN(const std::string text, Required(name));
  int value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < low || value > high) {
    return Wrong(name, absl::StrCat("must be a number from ", low, " to ", high));
  }
  return value;
}

absl::StatusOr<std::string> LaunchVariables::Required(const char* name) const {
  if (Has(name)) return Text(name);
  return absl::InvalidArgumentError(absl::StrCat("the environment looks like that of ", set_by_, ", but ", name,
                                                 " is not set; start every rank with ", set_by_,
                                                 ", or unset its other variables"));
}

absl::Status LaunchVariables::Wrong(const char* name, const std::string& must) const {
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", Quoted(Text(name)), " but ", must,
                                                 "; start every rank with ", set_by_, ", or unset its variables"));
}

}  // namespace reprise::internal
