#include "graph/comm/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "graph/comm/file_descriptor.h"
#include "graph/comm/socket.h"

namespace reprise::internal {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Between fork and exec: only what a signal handler may do. Returns errno.
int BecomeChild(const ChildOptions& options, pid_t parent, char* const* argv, char* const* environment) {
  if (setpgid(0, 0) != 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return errno;
  if (getppid() != parent) _exit(127);  // the parent died before the line above
  if (options.input >= 0 && dup2(options.input, STDIN_FILENO) < 0) return errno;
  if (options.output >= 0 && dup2(options.output, STDOUT_FILENO) < 0) return errno;
  if (options.error >= 0 && dup2(options.error, STDERR_FILENO) < 0) return errno;
  if (sigprocmask(SIG_SETMASK, &options.signal_mask, nullptr) != 0) return errno;
  execvpe(options.path.c_str(), argv, environment);
  return errno;
}

}  // namespace

absl::StatusOr<pid_t> StartChild(const ChildOptions& options) {
  const std::vector<char*> argv = Pointers(options.argv), environment = Pointers(options.environment);
  int ends[2];  // carries errno if exec fails, and is closed by exec
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::UnavailableError(ErrnoText("making a pipe", errno));
  const FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);

  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    const int error = BecomeChild(options, parent, argv.data(), environment.data());
    (void)!write(write_end.get(), &error, sizeof(error));
    _exit(127);
  }
  if (child < 0) return absl::UnavailableError(ErrnoText("starting a process", errno));
  setpgid(child, child);  // here too: signals may be sent before the child gets that far
  write_end.Close();
  int error = 0;
  ssize_t received = 0;
  do {
    received = read(read_end.get(), &error, sizeof(error));
  } while (received < 0 && errno == EINTR);
  if (received <= 0) return child;
  waitpid(child, nullptr, 0);
  return absl::NotFoundError(ErrnoText(absl::StrCat("running ", options.path), error));
}

std::optional<ChildEnd> PollChild(pid_t child) {
  siginfo_t info = {};
  int result = 0;
  do {
    result = waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT);
  } while (result != 0 && errno == EINTR);
  // A parent of ours that ignores SIGCHLD makes the system forget how children ended.
  if (result != 0) return ChildEnd{.exit_code = 1};
  if (info.si_pid == 0) return std::nullopt;
  ChildEnd end;
  (info.si_code == CLD_EXITED ? end.exit_code : end.signal) = info.si_status;
  // While the child is a zombie nobody else can have its group's number.
  if (end.exit_code != 0 || end.signal != 0) SignalChild(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return end;
}

void SignalChild(pid_t child, int signal) { kill(-child, signal); }

}  // namespace reprise::internal
