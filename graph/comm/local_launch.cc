#include "reprise/graph/local_launch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "graph/comm/child_process.h"
#include "graph/comm/deadline.h"
#include "graph/comm/handshake.h"
#include "graph/comm/line_forwarder.h"
#include "graph/comm/socket.h"
#include "graph/rank_list.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

using internal::ChildEnd;
using internal::Deadline;
using internal::FileDescriptor;
using internal::LineForwarder;

constexpr int kTimeoutExitCode = 124;  // as timeout(1)

// Signals wait in a descriptor instead of interrupting, for as long as this lives and in this thread.
class WaitingSignals {
 public:
  WaitingSignals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&set, signal);
    pthread_sigmask(SIG_BLOCK, &set, &before_);
    fd_ = FileDescriptor(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  }
  ~WaitingSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  int fd() const { return fd_.get(); }
  const sigset_t& before() const { return before_; }
  std::optional<int> Next() {
    signalfd_siginfo info;
    if (read(fd_.get(), &info, sizeof(info)) != sizeof(info)) return std::nullopt;
    return static_cast<int>(info.ssi_signo);
  }

 private:
  sigset_t before_ = {};
  FileDescriptor fd_;
};

// This process's environment, with that of one rank in place of any of that kind.
std::vector<std::string> EnvironmentOf(int rank, int ranks, const std::string& job) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view name = absl::string_view(*entry).substr(0, absl::string_view(*entry).find('='));
    bool replaced = false;
    for (const char* ours : {"REPRISE_RANK", "REPRISE_WORLD_SIZE", "REPRISE_LOCAL_RANK", "REPRISE_LOCAL_SIZE",
                             "REPRISE_JOB", "REPRISE_HOST", "REPRISE_PORT"}) {
      replaced |= name == ours;
    }
    if (!replaced) environment.emplace_back(*entry);
  }
  for (const char* name : {"REPRISE_RANK", "REPRISE_LOCAL_RANK"}) {
    environment.push_back(absl::StrCat(name, "=", rank));
  }
  for (const char* name : {"REPRISE_WORLD_SIZE", "REPRISE_LOCAL_SIZE"}) {
    environment.push_back(absl::StrCat(name, "=", ranks));
  }
  environment.push_back(absl::StrCat("REPRISE_JOB=", job));
  return environment;
}

absl::StatusOr<std::vector<std::string>> OwnArguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (text.empty()) {
    return absl::NotFoundError("/proc/self/cmdline does not say how this program was started; set argv");
  }
  if (text.back() == '\0') text.pop_back();
  return std::vector<std::string>(absl::StrSplit(text, '\0'));
}

std::string EndText(const ChildEnd& end) {
  if (end.signal == 0) return absl::StrCat("exited with code ", end.exit_code);
  return absl::StrCat("was ended by signal ", end.signal, " (", strsignal(end.signal), ")");
}

class LocalRanks {
 public:
  explicit LocalRanks(const LocalLaunchOptions& options) : options_(options) {}
  // None is left, whatever happened before.
  ~LocalRanks() {
    SignalAll(SIGKILL);
    while (!running_.empty()) {
      Reap();
      if (!running_.empty()) absl::SleepFor(absl::Milliseconds(1));
    }
  }

  absl::Status Start() {
    const internal::Nonce random = internal::RandomNonce();
    const std::string job = absl::StrFormat("local-%016x%016x", random.high, random.low);
    internal::ChildOptions child;
    child.argv = options_.argv;
    if (child.argv.empty()) {
      REPRISE_ASSIGN_OR_RETURN(child.argv, OwnArguments());
    }
    child.path = options_.argv.empty() ? "/proc/self/exe" : child.argv.front();
    child.signal_mask = signals_.before();
    const FileDescriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
    for (int rank = 0; rank < options_.ranks; ++rank) {
      child.environment = EnvironmentOf(rank, options_.ranks, job);
      FileDescriptor output, error;
      if (rank > 0) REPRISE_RETURN_IF_ERROR(Redirect(rank, output, error));
      child.input = rank > 0 ? nothing.get() : -1;
      child.output = output.get();
      child.error = error.get();
      REPRISE_ASSIGN_OR_RETURN(const pid_t pid, internal::StartChild(child));
      running_.push_back({rank, pid});
    }
    return absl::OkStatus();
  }

  LocalRun Wait() {
    HandleEventsUntil(Deadline(options_.timeout), [&] { return !failures_.empty(); });
    if (failures_.empty()) {
      timed_out_ = RunningRanks();
    } else {
      HandleEventsUntil(Deadline(options_.grace));
      ended_ = RunningRanks();
    }
    ending_ = true;
    SignalAll(SIGTERM);
    HandleEventsUntil(Deadline(options_.grace));
    SignalAll(SIGKILL);
    HandleEventsUntil(Deadline(absl::InfiniteDuration()));
    for (LineForwarder& forwarder : forwarders_) forwarder.Finish();
    return Result();
  }

 private:
  struct Running {
    int rank;
    pid_t pid;
  };
  struct Failure {
    int rank;
    ChildEnd end;
  };

  std::string LogPath(int rank) const { return absl::StrCat(options_.log_directory, "/rank-", rank, ".log"); }

  // Where a rank other than 0 writes.
  absl::Status Redirect(int rank, FileDescriptor& output, FileDescriptor& error) {
    const std::string prefix = absl::StrCat("[rank ", rank, "] ");
    int log = -1;
    if (options_.log_directory.empty()) {
      REPRISE_RETURN_IF_ERROR(AddForwarder(prefix, STDOUT_FILENO, -1, output));
    } else {
      // Appending keeps what the rank and the forwarder write apart.
      constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC;
      output = FileDescriptor(open(LogPath(rank).c_str(), kFlags, 0644));
      logs_.emplace_back(output.valid() ? fcntl(output.get(), F_DUPFD_CLOEXEC, 0) : -1);
      log = logs_.back().get();
      if (log < 0) return absl::UnavailableError(internal::ErrnoText(absl::StrCat("opening ", LogPath(rank)), errno));
    }
    return AddForwarder(prefix, STDERR_FILENO, log, error);
  }

  absl::Status AddForwarder(const std::string& prefix, int target, int copy, FileDescriptor& write_end) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return absl::UnavailableError(internal::ErrnoText("making a pipe", errno));
    write_end = FileDescriptor(ends[1]);
    forwarders_.emplace_back(FileDescriptor(ends[0]), prefix, target, copy);
    return absl::OkStatus();
  }

  // Until then, or until no rank runs or `stop` holds.
  void HandleEventsUntil(
      const Deadline& deadline, absl::FunctionRef<bool()> stop = [] { return false; }) {
    while (!running_.empty() && !stop() && !deadline.passed()) {
      HandleEvents(deadline);
      Reap();
    }
  }

  // Waits for something to happen; forwards signals and lines.
  void HandleEvents(const Deadline& deadline) {
    constexpr absl::Duration kLookAgain = absl::Seconds(1);  // if another thread took the signal that a child ended
    std::vector<pollfd> files = {{signals_.fd(), POLLIN, 0}};
    for (const LineForwarder& forwarder : forwarders_) files.push_back({forwarder.fd(), POLLIN, 0});
    poll(files.data(), files.size(), deadline.OrAfter(kLookAgain).poll_timeout());
    for (LineForwarder& forwarder : forwarders_) forwarder.Forward();
    while (const std::optional<int> signal = signals_.Next()) {
      if (*signal != SIGCHLD) SignalAll(*signal);
    }
  }

  void Reap() {
    std::vector<Running> still_running;
    for (const Running& child : running_) {
      const std::optional<ChildEnd> end = internal::PollChild(child.pid);
      if (!end.has_value()) {
        still_running.push_back(child);
      } else if (!ending_ && (end->signal != 0 || end->exit_code != 0)) {
        failures_.push_back({child.rank, *end});
      }
    }
    running_ = std::move(still_running);
    std::stable_partition(failures_.begin(), failures_.end(), [](const Failure& f) { return f.end.signal != 0; });
  }

  std::vector<int> RunningRanks() const {
    std::vector<int> ranks;
    for (const Running& child : running_) ranks.push_back(child.rank);
    return ranks;
  }
  void SignalAll(int signal) {
    for (const Running& child : running_) internal::SignalChild(child.pid, signal);
  }

  LocalRun Result() const {
    LocalRun run;
    std::vector<std::string> parts;
    for (const Failure& failure : failures_) {
      parts.push_back(absl::StrCat("rank ", failure.rank, " of ", options_.ranks, " ", EndText(failure.end)));
      if (failure.rank > 0 && !options_.log_directory.empty()) {
        absl::StrAppend(&parts.back(), " (see ", LogPath(failure.rank), ")");
      }
    }
    if (!timed_out_.empty()) {
      parts.push_back(absl::StrCat(internal::RankList(timed_out_), " of ", options_.ranks, " did not end within ",
                                   absl::FormatDuration(options_.timeout)));
    }
    if (!ended_.empty()) parts.push_back(absl::StrCat(internal::RankList(ended_), " had to be ended"));
    run.message = absl::StrJoin(parts, "; ");
    if (!failures_.empty()) {
      const ChildEnd& first = failures_.front().end;
      run.exit_code = first.signal != 0 ? 128 + first.signal : first.exit_code;
    } else if (!timed_out_.empty()) {
      run.exit_code = kTimeoutExitCode;
    }
    return run;
  }

  const LocalLaunchOptions& options_;
  WaitingSignals signals_;
  std::vector<Running> running_;
  std::vector<LineForwarder> forwarders_;
  std::vector<FileDescriptor> logs_;
  std::vector<Failure> failures_;  // signals first: others see that a rank is gone before it can be waited for
  bool ending_ = false;            // ranks that this process ends have not failed
  std::vector<int> ended_;         // after another failed
  std::vector<int> timed_out_;
};

}  // namespace

absl::StatusOr<LocalRun> RunLocalRanks(const LocalLaunchOptions& options) {
  constexpr int kMaxRanks = 1024;
  if (options.ranks < 1 || options.ranks > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("LocalLaunchOptions::ranks is ", options.ranks, " but must be between 1 and ", kMaxRanks));
  }
  if (!options.log_directory.empty() && mkdir(options.log_directory.c_str(), 0777) != 0 && errno != EEXIST) {
    return absl::UnavailableError(internal::ErrnoText(absl::StrCat("making ", options.log_directory), errno));
  }
  LocalRanks ranks(options);
  REPRISE_RETURN_IF_ERROR(ranks.Start());
  return ranks.Wait();
}

}  // namespace reprise
