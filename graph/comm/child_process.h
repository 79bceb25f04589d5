// One process that dies with its parent, in a process group of its own, so that what it starts can be ended with it.
#ifndef REPRISE_GRAPH_COMM_CHILD_PROCESS_H_
#define REPRISE_GRAPH_COMM_CHILD_PROCESS_H_

#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace reprise::internal {

struct ChildOptions {
  std::string path;  // "/proc/self/exe", or a name looked up in PATH
  std::vector<std::string> argv, environment;
  sigset_t signal_mask = {};
  // Become its standard input, output and error; -1: this process's own.
  int input = -1, output = -1, error = -1;
};

// NotFound if the program cannot be run, Unavailable if there can be no process.
absl::StatusOr<pid_t> StartChild(const ChildOptions& options);

struct ChildEnd {
  int exit_code = 0;
  int signal = 0;  // that ended it, or 0
};
// How it ended, once; nothing while it runs. What it left behind in its group is killed unless it ended with 0.
std::optional<ChildEnd> PollChild(pid_t child);

// To the child and all in its group.
void SignalChild(pid_t child, int signal);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_CHILD_PROCESS_H_
