// Owner of a file descriptor, which is never one of the standard streams' numbers: in a process that was started with
// one of those closed, the next file or socket would get its number, and what the program prints would go there.
#ifndef REPRISE_GRAPH_COMM_FILE_DESCRIPTOR_H_
#define REPRISE_GRAPH_COMM_FILE_DESCRIPTOR_H_

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace reprise::internal {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  // A new one from the system; -1: none, and errno is left as it is.
  explicit FileDescriptor(int fd) : fd_(fd) {
    if (fd < 0 || fd > STDERR_FILENO) return;
    fd_ = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int error = errno;
    close(fd);
    errno = error;
  }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      Close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~FileDescriptor() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_FILE_DESCRIPTOR_H_
