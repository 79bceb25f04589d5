// How every program of this project starts and ends, whatever its flags, its input and the state of its output are.
#ifndef REPRISE_EXAMPLES_COMMON_COMMAND_LINE_H_
#define REPRISE_EXAMPLES_COMMON_COMMAND_LINE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace reprise::examples {

// Sets the flags that the arguments name, each --name=value, --name value, or --name and --noname of a bool.
// InvalidArgument for the first one that is no such thing, or not a value of its flag. Returns what is asked for
// instead of a run: the text of --help (of `usage`, all flags and the exit codes, those of
// `exit_codes` too) or of --version, otherwise "".
absl::StatusOr<std::string> ReadCommandLine(absl::string_view program, absl::string_view usage,
                                            absl::string_view exit_codes, const std::vector<std::string>& arguments);

// The whole of a main function: reads the command line, calls `run`, which returns the exit code, and prints what went
// wrong as "PROGRAM: message" to the standard error. Exit codes: 0 also for --help and --version; 2 if what is asked
// for is refused; 1 for other failures, among them output that could not be written. `exit_codes`: for --help, which
// others `run` returns.
int RunProgram(int argc, char** argv, absl::string_view usage, const std::function<absl::StatusOr<int>()>& run,
               absl::string_view exit_codes = "");

// InvalidArgument, by the flag's name and with the bounds, for a value outside [minimum, maximum].
template <class T>
absl::Status CheckFlag(const absl::Flag<T>& flag, int64_t minimum, int64_t maximum) {
  const T value = absl::GetFlag(flag);
  if (value >= static_cast<T>(minimum) && value <= static_cast<T>(maximum)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag.Name(), " is ", value, " but must be from ", minimum, " to ", maximum));
}

}  // namespace reprise::examples

#endif  // REPRISE_EXAMPLES_COMMON_COMMAND_LINE_H_
