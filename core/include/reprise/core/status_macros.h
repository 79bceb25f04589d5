// Early return on errors, for code that reports them as absl::Status.
//
//   REPRISE_RETURN_IF_ERROR(session->RunMicrobatch());
//   REPRISE_ASSIGN_OR_RETURN(const Model model, builder.Build());
//
// Public because Debian 12's Abseil has no such macros.
#ifndef REPRISE_CORE_STATUS_MACROS_H_
#define REPRISE_CORE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Evaluates `expression`, an absl::Status, and returns it from the enclosing function unless it is OK.
#define REPRISE_RETURN_IF_ERROR(expression)                                 \
  do {                                                                      \
    if (absl::Status reprise_status = (expression); !reprise_status.ok()) { \
      return reprise_status;                                                \
    }                                                                       \
  } while (false)

#define REPRISE_STATUS_CONCAT_INNER(a, b) a##b
#define REPRISE_STATUS_CONCAT(a, b) REPRISE_STATUS_CONCAT_INNER(a, b)

// Evaluates `expression`, an absl::StatusOr<T>; returns its status, or assigns its value to `target`, which may
// declare a variable.
#define REPRISE_ASSIGN_OR_RETURN(target, expression) \
  REPRISE_ASSIGN_OR_RETURN_INNER(REPRISE_STATUS_CONCAT(reprise_status_or_, __LINE__), target, expression)

#define REPRISE_ASSIGN_OR_RETURN_INNER(temporary, target, expression) \
  auto temporary = (expression);                                      \
  if (!temporary.ok()) return std::move(temporary).status();          \
  target = *std::move(temporary)

#endif  // REPRISE_CORE_STATUS_MACROS_H_
