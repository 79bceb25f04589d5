// Environment variables of a launcher as numbers and text, with one form of message for all that can be wrong.
#ifndef REPRISE_GRAPH_COMM_LAUNCH_VARIABLES_H_
#define REPRISE_GRAPH_COMM_LAUNCH_VARIABLES_H_

#include <initializer_list>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace reprise::internal {

// Looks up a variable: null if it is not set. std::getenv has this form.
using Lookup = absl::FunctionRef<const char*(const char*)>;

class LaunchVariables {
 public:
  // `remedy` ends messages: "start every rank with torchrun, or unset its variables".
  LaunchVariables(Lookup lookup, std::string remedy) : lookup_(lookup), remedy_(std::move(remedy)) {}

  // Set and not empty: shells and container files "unset" variables by emptying them.
  bool Has(const char* name) const;
  // Empty if not set.
  std::string Text(const char* name) const;
  // The first of `names` that is set; null if none is.
  const char* FirstOf(std::initializer_list<const char*> names) const;
  // InvalidArgument if it is not set, not a whole decimal number, or outside [low, high].
  absl::StatusOr<int> Number(const char* name, int low, int high) const;
  // Nothing if it is not set, or not a whole decimal number.
  std::optional<int> NumberIfSet(const char* name) const;
  // InvalidArgument if it is not set.
  absl::StatusOr<std::string> Required(const char* name) const;
  // InvalidArgument for the value of a variable: "NAME is "value" but <must>; <remedy>".
  absl::Status Wrong(const char* name, const std::string& must) const;

 private:
  Lookup lookup_;
  std::string remedy_;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_LAUNCH_VARIABLES_H_
