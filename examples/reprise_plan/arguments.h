// Checks the command line before Abseil does, which would end the process with its own exit code and words.
#ifndef REPRISE_EXAMPLES_REPRISE_PLAN_ARGUMENTS_H_
#define REPRISE_EXAMPLES_REPRISE_PLAN_ARGUMENTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace reprise {

// InvalidArgument for the first argument, after the program's name, that absl::ParseCommandLine would refuse or that is
// not a flag.
absl::Status CheckArguments(const std::vector<std::string>& arguments);

}  // namespace reprise

#endif  // REPRISE_EXAMPLES_REPRISE_PLAN_ARGUMENTS_H_
