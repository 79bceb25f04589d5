// Whole files, for programs that take their names from the command line.
#ifndef REPRISE_EXAMPLES_COMMON_READ_FILE_H_
#define REPRISE_EXAMPLES_COMMON_READ_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace reprise::examples {

// The bytes of a regular file. NotFound if it cannot be opened or read; InvalidArgument for a folder, a device, a pipe
// or anything else that may have no end, and for a file of more than `max_bytes`. Messages name the path and the
// reason.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes);

}  // namespace reprise::examples

#endif  // REPRISE_EXAMPLES_COMMON_READ_FILE_H_
