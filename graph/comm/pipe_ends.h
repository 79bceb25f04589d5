// Both ends of a pipe, closed on exec.
#ifndef REPRISE_GRAPH_COMM_PIPE_ENDS_H_
#define REPRISE_GRAPH_COMM_PIPE_ENDS_H_

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "graph/comm/file_descriptor.h"
#include "graph/comm/socket.h"

namespace reprise::internal {

struct PipeEnds {
  FileDescriptor read, write;
};

// Unavailable if the system has none left.
inline absl::StatusOr<PipeEnds> MakePipe() {
  int ends[2];
  PipeEnds pipe;
  if (pipe2(ends, O_CLOEXEC) == 0) {
    pipe.write = FileDescriptor(ends[1]);
    pipe.read = FileDescriptor(ends[0]);
    if (pipe.read.valid() && pipe.write.valid()) return pipe;
  }
  return absl::UnavailableError(absl::StrCat(ErrnoText("making a pipe", errno),
                                             "; start fewer ranks, or raise the limit of open files (ulimit -n)"));
}

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_PIPE_ENDS_H_
