// Copies what comes through a pipe, whole lines at a time, so that lines of several ranks do not mix.
#ifndef REPRISE_GRAPH_COMM_LINE_FORWARDER_H_
#define REPRISE_GRAPH_COMM_LINE_FORWARDER_H_

#include <string>

#include "absl/strings/string_view.h"
#include "graph/comm/file_descriptor.h"
#include "graph/comm/output_writer.h"

namespace reprise::internal {

class LineForwarder {
 public:
  // To `target`, each line after `prefix`, or as it comes if that is empty; and to the file `copy`, unless that is -1,
  // without. Owns neither.
  LineForwarder(FileDescriptor source, std::string prefix, OutputWriter* target, int copy);

  // -1 once the other end closed, and while the target has no room: then the other end waits too.
  int fd() const { return target_->HasRoom() ? source_.get() : -1; }
  // Forwards some of what is there now, so that no source can keep its caller.
  void Forward();
  // Forwards what the pipe holds, whether the target has room or not, and ends a last line that is not complete.
  void Finish();
  // Empty if the copy is whole. Otherwise what it lacks: "720 bytes were dropped: No space left on device".
  std::string CopyLoss() const;

 private:
  // Up to `num_bytes`; less if there is no more now.
  void Read(size_t num_bytes);
  void ForwardLines();
  // As far as the file takes them: a full disk must not stop a run.
  void WriteCopy(absl::string_view bytes);

  FileDescriptor source_;
  const std::string prefix_;
  OutputWriter* const target_;
  const int copy_;
  std::string pending_;  // the beginning of a line
  size_t num_lost_ = 0;  // of the copy
  int copy_error_ = 0;   // the first
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_LINE_FORWARDER_H_
