#include "examples/common/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace reprise::examples {
namespace {

constexpr size_t kBlock = 1 << 20;

class File {
 public:
  // Without waiting for the other end of a pipe.
  explicit File(const std::string& path) : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int descriptor() const { return descriptor_; }

 private:
  const int descriptor_;
};

std::string Message(const std::string& path, const std::string& reason) {
  return absl::StrCat("cannot read ", path, " (", reason, ")");
}
absl::Status SystemError(const std::string& path) { return absl::NotFoundError(Message(path, std::strerror(errno))); }
absl::Status TooLarge(const std::string& path, int64_t max_bytes) {
  return absl::InvalidArgumentError(Message(path, absl::StrCat("more than ", max_bytes, " bytes")));
}

absl::StatusOr<std::string> ReadAll(const std::string& path, int descriptor, int64_t max_bytes) {
  std::string text;
  for (;;) {
    const size_t size = text.size();
    text.resize(size + kBlock);
    const ssize_t bytes = read(descriptor, text.data() + size, kBlock);
    if (bytes < 0 && errno != EINTR) return SystemError(path);
    text.resize(size + static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
    if (bytes == 0) return text;
    if (static_cast<int64_t>(text.size()) > max_bytes) return TooLarge(path, max_bytes);
  }
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  const File file(path);
  struct stat about;
  if (file.descriptor() < 0 || fstat(file.descriptor(), &about) != 0) return SystemError(path);
  if (S_ISDIR(about.st_mode)) return absl::InvalidArgumentError(Message(path, "Is a directory"));
  if (!S_ISREG(about.st_mode)) return absl::InvalidArgumentError(Message(path, "not a regular file"));
  if (about.st_size > max_bytes) return TooLarge(path, max_bytes);
  try {
    return ReadAll(path, file.descriptor(), max_bytes);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(Message(path, absl::StrCat("no memory for ", about.st_size, " bytes")));
  }
}

}  // namespace reprise::examples
