// Writes to a file that may take bytes slowly or never again: a pager, a terminal that was stopped, an ssh without a
// network. Whoever has something to write never waits for it.
#ifndef REPRISE_GRAPH_COMM_OUTPUT_WRITER_H_
#define REPRISE_GRAPH_COMM_OUTPUT_WRITER_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "graph/comm/file_descriptor.h"

namespace reprise::internal {

// Not O_NONBLOCK: that would hold for every process that shares the file. A thread writes instead, and may be left
// alone with what nobody takes. SIGPIPE reaches nobody.
class OutputWriter {
 public:
  // Writes to a duplicate of `fd`; `name` is for Loss.
  OutputWriter(int fd, std::string name);
  ~OutputWriter();  // leaves the thread alone with what it could not write

  // Unavailable if the system has no file left. Before anything else.
  absl::Status Start();

  // False while so much waits to be written that its sources should wait too.
  bool HasRoom() const;
  // Takes all, with room or without. Whatever comes after an error of the file is dropped.
  void Write(absl::string_view bytes);
  // Nothing waits to be written.
  bool done() const;
  // Readable once there is room again or nothing waits; reading it is for ClearWake.
  int wake_fd() const;
  void ClearWake();

  // Empty if all was written. Otherwise what became of the rest: "720 bytes of standard output were dropped: Broken
  // pipe".
  std::string Loss() const;
  // The file refused some (a full disk). That its reader went, or does not take them, is no failure of the file.
  bool failed() const;

 private:
  struct Shared;
  static void Run(const std::shared_ptr<Shared>& shared);

  const std::string name_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_OUTPUT_WRITER_H_
