// Processes that die with their parent: one program, and the group by which all that it starts can be ended with it.
#ifndef REPRISE_GRAPH_COMM_CHILD_PROCESS_H_
#define REPRISE_GRAPH_COMM_CHILD_PROCESS_H_

#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace reprise::internal {

// A process group that is empty once its owner is gone, however that ended: its guard, at first the leader, is a
// process of its own that does nothing but wait for that and kill the group. Only processes that leave the group escape
// (a daemon that calls setsid).
class ProcessGroup {
 public:
  ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ~ProcessGroup();

  // Once. The calling thread must outlive the group. Unavailable if there can be no process.
  absl::Status Start();
  // Of the leader and of the group; 0 before Start.
  pid_t id() const { return leader_; }
  // To all in the group; the guard hears SIGKILL alone. Other signals reach stopped processes too, which go on.
  void Signal(int signal) const;
  // Starts another guard if somebody ended this one, as soon as there can be one.
  void KeepGuarded();

 private:
  pid_t leader_ = 0;  // whose number is the group's, ended or not
  pid_t guard_ = 0;
};

struct ChildOptions {
  std::string path;  // "/proc/self/exe", or a name looked up in PATH
  std::vector<std::string> argv, environment;
  sigset_t signal_mask = {};
  pid_t group = 0;  // of a ProcessGroup
  // Become its standard input, output and error; -1: this process's own.
  int input = -1, output = -1, error = -1;
};

// NotFound if the program cannot be run, Unavailable if there can be no process.
absl::StatusOr<pid_t> StartChild(const ChildOptions& options);

struct ChildEnd {
  int exit_code = 0;
  int signal = 0;  // that ended it, or 0
};
// How it ended, once; nothing while it runs. `stopped_by` becomes the signal that stopped it, or 0 once it goes on; it
// stays as it is if neither happened.
std::optional<ChildEnd> PollChild(pid_t child, int& stopped_by);

// To a child that left `group`, and to the group that it leads if it does; nothing to one in `group`, which gets what
// the group gets. As ProcessGroup::Signal.
void SignalIfOutside(pid_t child, pid_t group, int signal);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_CHILD_PROCESS_H_
