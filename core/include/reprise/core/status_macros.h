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

// Evaluates an expression, an absl::Status, and returns it from the enclosing function unless it is OK. The expression
// may hold commas.
#define REPRISE_RETURN_IF_ERROR(...)                                         \
  do {                                                                       \
    if (absl::Status reprise_status = (__VA_ARGS__); !reprise_status.ok()) { \
      return reprise_status;                                                 \
    }                                                                        \
  } while (false)

// REPRISE_ASSIGN_OR_RETURN(target, expression) evaluates the expression, an absl::StatusOr<T>, which may hold commas;
// returns its status, or assigns its value to the target, which may declare a variable. A target with a comma stands in
// parentheses:
//   REPRISE_ASSIGN_OR_RETURN((const std::pair<int, int> range), Find<int, int>(values));
#define REPRISE_ASSIGN_OR_RETURN(target, ...) \
  REPRISE_ASSIGN_OR_RETURN_INNER(REPRISE_STATUS_CONCAT(reprise_status_or_, __LINE__), target, __VA_ARGS__)

#define REPRISE_ASSIGN_OR_RETURN_INNER(temporary, target, ...) \
  auto temporary = (__VA_ARGS__);                              \
  if (!temporary.ok()) return std::move(temporary).status();   \
  REPRISE_STATUS_UNWRAP(target) = *std::move(temporary)

#define REPRISE_STATUS_CONCAT_INNER(a, b) a##b
#define REPRISE_STATUS_CONCAT(a, b) REPRISE_STATUS_CONCAT_INNER(a, b)

// `(text)` and `text` both become `text`: REPRISE_STATUS_TAKE is called if a parenthesis follows it, and the name that
// is left over expands to nothing.
#define REPRISE_STATUS_UNWRAP(text) REPRISE_STATUS_DROP(REPRISE_STATUS_TAKE text)
#define REPRISE_STATUS_TAKE(...) REPRISE_STATUS_TAKE __VA_ARGS__
#define REPRISE_STATUS_DROP(...) REPRISE_STATUS_DROP_INNER(__VA_ARGS__)
#define REPRISE_STATUS_DROP_INNER(...) REPRISE_STATUS_NO_##__VA_ARGS__
#define REPRISE_STATUS_NO_REPRISE_STATUS_TAKE

#endif  // REPRISE_CORE_STATUS_MACROS_H_
