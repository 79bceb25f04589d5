#include "graph/comm/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "absl/strings/str_cat.h"
#include "graph/comm/pipe_ends.h"
#include "graph/comm/socket.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// The guard is a copy of this process that must hold nothing open: who reads a pipe of it waits for its end.
void CloseAllFiles() {
#ifdef SYS_close_range
  if (syscall(SYS_close_range, 0u, UINT_MAX, 0u) == 0) return;
#endif
  constexpr long kMost = 1 << 16;  // where the limit is in the millions, closing each takes seconds
  const long limit = std::clamp(sysconf(_SC_OPEN_MAX), 1024L, kMost);
  for (int fd = 0; fd < limit; ++fd) close(fd);
}

// After fork: only what a signal handler may do. Never returns.
[[noreturn]] void GuardGroup(pid_t owner, pid_t group) {
  sigset_t all, death;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);  // signals to the group wait for good
  sigemptyset(&death);
  sigaddset(&death, SIGUSR1);
  signal(SIGUSR1, SIG_DFL);  // an ignored one would not wake anybody
  const bool told = setpgid(0, group) == 0 && prctl(PR_SET_PDEATHSIG, SIGUSR1) == 0;
  CloseAllFiles();
  if (!told) _exit(0);
  while (getppid() == owner) sigwaitinfo(&death, nullptr);
  kill(0, SIGKILL);
  _exit(0);
}

// Its number, or -1. A `group` of 0 is a new one, with the number of the guard.
pid_t StartGuard(pid_t group) {
  const pid_t owner = getpid();
  const pid_t guard = fork();
  if (guard == 0) GuardGroup(owner, group);
  if (guard > 0) setpgid(guard, group);  // here too: others join, and signals come, before the guard gets that far
  return guard;
}

// What is stopped would not act on the signal.
void SignalAndContinue(pid_t target, int signal) {
  kill(target, signal);
  if (signal != SIGKILL) kill(target, SIGCONT);
}

// Between fork and exec: only what a signal handler may do. Returns errno.
int BecomeChild(const ChildOptions& options, pid_t parent, char* const* argv, char* const* environment) {
  if (setpgid(0, options.group) != 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return errno;
  if (getppid() != parent) _exit(127);  // the parent died before the line above
  if (options.input >= 0 && dup2(options.input, STDIN_FILENO) < 0) return errno;
  if (options.output >= 0 && dup2(options.output, STDOUT_FILENO) < 0) return errno;
  if (options.error >= 0 && dup2(options.error, STDERR_FILENO) < 0) return errno;
  if (sigprocmask(SIG_SETMASK, &options.signal_mask, nullptr) != 0) return errno;
  execvpe(options.path.c_str(), argv, environment);
  return errno;
}

absl::Status NoProcess(int error) {
  return absl::UnavailableError(
      absl::StrCat(ErrnoText("starting a process", error), "; start fewer ranks, or raise the limit (ulimit -u)"));
}

void Reap(pid_t child) {
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

absl::Status ProcessGroup::Start() {
  const pid_t leader = StartGuard(0);
  if (leader < 0) return NoProcess(errno);
  leader_ = guard_ = leader;
  return absl::OkStatus();
}

ProcessGroup::~ProcessGroup() {
  if (leader_ == 0) return;
  // While the leader is not reaped, running or not, nobody else can have the group's number.
  Signal(SIGKILL);
  if (guard_ != leader_) Reap(guard_);
  Reap(leader_);
}

void ProcessGroup::Signal(int signal) const {
  if (leader_ != 0) SignalAndContinue(-leader_, signal);
}

void ProcessGroup::KeepGuarded() {
  siginfo_t ended = {};
  if (waitid(P_PID, static_cast<id_t>(guard_), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0) return;
  const pid_t guard = StartGuard(leader_);
  if (guard < 0) return;
  if (guard_ != leader_) Reap(guard_);  // the leader's number must stay taken
  guard_ = guard;
}

absl::StatusOr<pid_t> StartChild(const ChildOptions& options) {
  const std::vector<char*> argv = Pointers(options.argv), environment = Pointers(options.environment);
  REPRISE_ASSIGN_OR_RETURN(PipeEnds ends, MakePipe());  // carries errno if exec fails, and is closed by exec

  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    const int error = BecomeChild(options, parent, argv.data(), environment.data());
    (void)!write(ends.write.get(), &error, sizeof(error));
    _exit(127);
  }
  if (child < 0) return NoProcess(errno);
  setpgid(child, options.group);  // here too: signals may be sent before the child gets that far
  ends.write.Close();
  int error = 0;
  ssize_t received = 0;
  do {
    received = read(ends.read.get(), &error, sizeof(error));
  } while (received < 0 && errno == EINTR);
  if (received <= 0) return child;
  Reap(child);
  return absl::NotFoundError(ErrnoText(absl::StrCat("running ", options.path), error));
}

std::optional<ChildEnd> PollChild(pid_t child, int& stopped_by) {
  while (true) {
    int status = 0;
    const pid_t changed = waitpid(child, &status, WNOHANG | WUNTRACED | WCONTINUED);
    if (changed < 0 && errno == EINTR) continue;
    // Somebody else in this process waited for it: nobody knows how it ended.
    if (changed < 0) return ChildEnd{.exit_code = 1};
    if (changed == 0) return std::nullopt;
    if (WIFSIGNALED(status)) return ChildEnd{.signal = WTERMSIG(status)};
    if (WIFEXITED(status)) return ChildEnd{.exit_code = WEXITSTATUS(status)};
    stopped_by = WIFSTOPPED(status) ? WSTOPSIG(status) : 0;
  }
}

void SignalIfOutside(pid_t child, pid_t group, int signal) {
  const pid_t its_group = getpgid(child);
  if (its_group < 0 || its_group == group) return;
  SignalAndContinue(its_group == child ? -child : child, signal);
}

}  // namespace reprise::internal
