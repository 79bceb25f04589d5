// Where in a schedule an error arose.
#ifndef REPRISE_GRAPH_COMMAND_ERROR_H_
#define REPRISE_GRAPH_COMMAND_ERROR_H_

#include <exception>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/core/plan.h"

namespace reprise::internal {

// The error with "command #7 (forward call c0 microbatch 0): " in front.
inline absl::Status AtCommand(const Plan& plan, CommandId id, const Command& command, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("command #", id.value(), " (", Describe(plan, command),
                                                  "): ", std::string(status.message())));
}

// Runs what calls user code and returns a status. An exception that leaves it becomes Internal: "<what> threw: <its
// text>".
template <class Function>
absl::Status WithoutExceptions(absl::string_view what, Function&& function) {
  constexpr absl::string_view kRemedy = "; no exception may leave it";
  try {
    return std::forward<Function>(function)();
  } catch (const std::exception& exception) {
    return absl::InternalError(absl::StrCat(what, " threw an exception: ", exception.what(), kRemedy));
  } catch (...) {
    return absl::InternalError(absl::StrCat(what, " threw something that is not a std::exception", kRemedy));
  }
}

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMMAND_ERROR_H_
