// Copies what comes through a pipe, whole lines at a time, so that lines of several ranks do not mix.
#ifndef REPRISE_GRAPH_COMM_LINE_FORWARDER_H_
#define REPRISE_GRAPH_COMM_LINE_FORWARDER_H_

#include <string>

#include "absl/strings/string_view.h"
#include "graph/comm/file_descriptor.h"

namespace reprise::internal {

class LineForwarder {
 public:
  // To `target`, each line after `prefix`; and to `copy`, unless that is -1, without. Owns neither.
  LineForwarder(FileDescriptor source, std::string prefix, int target, int copy);

  // -1 once the other end closed.
  int fd() const { return source_.get(); }
  // Forwards what is there now.
  void Forward();
  // As Forward, and ends a last line that is not complete.
  void Finish();

 private:
  void ForwardLines();

  FileDescriptor source_;
  const std::string prefix_;
  const int target_, copy_;
  std::string pending_;  // the beginning of a line
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_LINE_FORWARDER_H_
