#include "examples/common/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>

#include "absl/strings/str_cat.h"

namespace reprise::examples {

void KeepStandardDescriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is this one: those below are open.
    if (open("/dev/null", descriptor == STDERR_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
  }
}

absl::Status CheckOutput() {
  errno = 0;
  std::cout.flush();
  bool written = static_cast<bool>(std::cout);
  // File systems of a network may write when a descriptor is closed; a copy suffices for that.
  if (written) written = close(dup(STDOUT_FILENO)) == 0 || errno == EBADF;
  if (written) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the standard output cannot be written",
                                          errno != 0 ? absl::StrCat(" (", std::strerror(errno), ")") : "",
                                          "; look at the disk or the pipe that it goes to"));
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path);
  file << text;
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path, " cannot be written (", std::strerror(errno), ")"));
}

}  // namespace reprise::examples
