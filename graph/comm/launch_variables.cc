#include "graph/comm/launch_variables.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/model/quoted.h"
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

std::optional<int> LaunchVariables::NumberIfSet(const char* name) const {
  const std::string value = Text(name);
  // Spaces around it do no harm (wc -l writes them), but a sign is a mistake.
  const absl::string_view text = absl::StripAsciiWhitespace(value);
  int number = 0;
  if (text.empty() || !absl::ascii_isdigit(static_cast<unsigned char>(text.front()))) return std::nullopt;
  if (!absl::SimpleAtoi(text, &number)) return std::nullopt;
  return number;
}

absl::StatusOr<int> LaunchVariables::Number(const char* name, int low, int high) const {
  REPRISE_RETURN_IF_ERROR(Required(name).status());
  const std::optional<int> value = NumberIfSet(name);
  if (value.has_value() && *value >= low && *value <= high) return *value;
  return Wrong(name, absl::StrCat("must be a number from ", low, " to ", high));
}

absl::StatusOr<std::string> LaunchVariables::Required(const char* name) const {
  if (Has(name)) return Text(name);
  return absl::InvalidArgumentError(absl::StrCat(name, " is not set, though others of its kind are; ", remedy_));
}

absl::Status LaunchVariables::Wrong(const char* name, const std::string& must) const {
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", Quoted(Text(name)), " but ", must, "; ", remedy_));
}

}  // namespace reprise::internal
