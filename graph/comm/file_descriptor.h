// Owner of a file descriptor.
#ifndef REPRISE_GRAPH_COMM_FILE_DESCRIPTOR_H_
#define REPRISE_GRAPH_COMM_FILE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace reprise::internal {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
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
