// That what a program prints arrives: a full disk or a closed output fails the program that lost its results there.
#ifndef REPRISE_EXAMPLES_COMMON_OUTPUT_H_
#define REPRISE_EXAMPLES_COMMON_OUTPUT_H_

#include <string>

#include "absl/status/status.h"

namespace reprise::examples {

// At the start of a program. A standard stream that the caller closed would give its number to the next file, which
// then got what is printed. It is opened such that writing to the standard output fails.
void KeepStandardDescriptors();

// DataLoss, with a remedy, unless all that std::cout was given so far is written.
absl::Status CheckOutput();

// Makes or replaces a file. Unavailable, with the path and the reason, unless all of it is written.
absl::Status WriteFile(const std::string& path, const std::string& text);

}  // namespace reprise::examples

#endif  // REPRISE_EXAMPLES_COMMON_OUTPUT_H_
