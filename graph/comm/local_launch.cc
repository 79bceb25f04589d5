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
#include <map>
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
#include "graph/comm/output_writer.h"
#include "graph/comm/pipe_ends.h"
#include "graph/comm/socket.h"
#include "graph/rank_list.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

using internal::ChildEnd;
using internal::Deadline;
using internal::FileDescriptor;
using internal::LineForwarder;
using internal::OutputWriter;

constexpr int kTimeoutExitCode = 124;    // as timeout(1)
constexpr int kLostOutputExitCode = 74;  // EX_IOERR of sysexits.h

// While this process ignores SIGCHLD, perhaps because its parent did, the system forgets how children end.
class DefaultChildSignal {
 public:
  DefaultChildSignal() {
    struct sigaction by_default = {};
    by_default.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &by_default, &before_);
  }
  ~DefaultChildSignal() { sigaction(SIGCHLD, &before_, nullptr); }

 private:
  struct sigaction before_ = {};
};

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

  // -1: the system has no descriptor left.
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

std::string SignalText(int signal) { return absl::StrCat("signal ", signal, " (", strsignal(signal), ")"); }

std::string EndText(const ChildEnd& end) {
  if (end.signal == 0) return absl::StrCat("exited with code ", end.exit_code);
  return absl::StrCat("was ended by ", SignalText(end.signal));
}

// What the system does to a process group that uses a terminal out of its turn, until somebody gives it the terminal.
// Nobody gives it to ranks.
bool StopsForTerminal(int signal) { return signal == SIGTTIN || signal == SIGTTOU; }

// A pipe or a socket has a reader who may go or stall. A terminal and a file are a rank's own business.
bool HasReader(int fd) {
  struct stat info = {};
  return fstat(fd, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode));
}

// Not of regular files, in which each may have a place of its own.
bool SameStream(int fd, int other) {
  struct stat one = {}, two = {};
  return fstat(fd, &one) == 0 && fstat(other, &two) == 0 && one.st_dev == two.st_dev && one.st_ino == two.st_ino &&
         !S_ISREG(one.st_mode);
}

absl::StatusOr<FileDescriptor> OpenLog(const std::string& path) {
  // Appending keeps what the rank and the forwarder write apart. A pipe of that name must not hold up the opener.
  FileDescriptor log(
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0644));
  if (!log.valid()) return absl::UnavailableError(internal::ErrnoText(absl::StrCat("opening ", path), errno));
  if (HasReader(log.get())) return absl::UnavailableError(absl::StrCat(path, " is a pipe, not a file; remove it"));
  fcntl(log.get(), F_SETFL, O_APPEND);
  return log;
}

class LocalRanks {
 public:
  explicit LocalRanks(const LocalLaunchOptions& options)
      : options_(options),
        timed_out_by_(options.timeout),
        output_(STDOUT_FILENO, "standard output"),
        error_(STDERR_FILENO, "standard error") {}
  // None is left, whatever happened before.
  ~LocalRanks() {
    ending_ = true;
    SignalAll(SIGKILL);
    while (!running_.empty()) {
      Reap();
      if (!running_.empty()) absl::SleepFor(absl::Milliseconds(1));
    }
  }

  absl::Status Start() {
    if (signals_.fd() < 0) return absl::UnavailableError(internal::ErrnoText("making a descriptor for signals", errno));
    REPRISE_RETURN_IF_ERROR(output_.Start());
    REPRISE_RETURN_IF_ERROR(error_.Start());
    REPRISE_RETURN_IF_ERROR(group_.Start());
    const internal::Nonce random = internal::RandomNonce();
    const std::string job = absl::StrFormat("local-%016x%016x", random.high, random.low);
    internal::ChildOptions child;
    child.argv = options_.argv;
    if (child.argv.empty()) {
      REPRISE_ASSIGN_OR_RETURN(child.argv, OwnArguments());
    }
    child.path = options_.argv.empty() ? "/proc/self/exe" : child.argv.front();
    child.signal_mask = signals_.before();
    child.group = group_.id();
    const FileDescriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
    for (int rank = 0; rank < options_.ranks; ++rank) {
      child.environment = EnvironmentOf(rank, options_.ranks, job);
      FileDescriptor output, error;
      REPRISE_RETURN_IF_ERROR(rank == 0 ? RedirectRank0(output, error) : Redirect(rank, output, error));
      child.input = rank > 0 ? nothing.get() : -1;
      child.output = output.get();
      child.error = error.get();
      REPRISE_ASSIGN_OR_RETURN(const pid_t pid, internal::StartChild(child));
      running_.push_back({.rank = rank, .pid = pid});
    }
    return absl::OkStatus();
  }

  LocalRun Wait() {
    const auto over = [&] { return running_.empty() || !failures_.empty() || StoppedForTerminal() != 0; };
    HandleEventsUntil(timed_out_by_, [&] { return over() || interrupted_by_ != 0; });
    if (!over() && interrupted_by_ != 0) HandleEventsUntil(timed_out_by_.OrAfter(options_.grace), over);
    if (!failures_.empty()) {
      HandleEventsUntil(Deadline(options_.grace), [&] { return running_.empty(); });
      ended_ = RunningRanks();
    } else if (const int signal = StoppedForTerminal(); signal != 0) {
      used_terminal_by_ = signal;  // the others have nothing to say: most were stopped too
    } else if (interrupted_by_ != 0) {
      ignored_signal_ = RunningRanks();
    } else {
      timed_out_ = RunningRanks();
    }
    for (const Running& child : running_) {
      if (child.stopped_by != 0) stopped_[child.stopped_by].push_back(child.rank);
    }
    ending_ = true;
    SignalAll(SIGTERM);
    HandleEventsUntil(Deadline(options_.grace), [&] { return running_.empty(); });
    SignalAll(SIGKILL);
    HandleEventsUntil(Deadline(absl::InfiniteDuration()), [&] { return running_.empty(); });
    WriteTheRest();
    return Result();
  }

 private:
  struct Running {
    int rank = 0;
    pid_t pid = 0;
    int stopped_by = 0;  // a signal, while it is stopped
  };
  struct Failure {
    int rank;
    ChildEnd end;
  };

  std::string LogPath(int rank) const { return absl::StrCat(options_.log_directory, "/rank-", rank, ".log"); }

  // Two writers would mix their lines where both streams are one.
  OutputWriter& ErrorWriter() { return SameStream(STDOUT_FILENO, STDERR_FILENO) ? output_ : error_; }

  // Where rank 0 writes, if not where this process does: the end of a reader would end it.
  absl::Status RedirectRank0(FileDescriptor& output, FileDescriptor& error) {
    if (HasReader(STDOUT_FILENO)) {
      REPRISE_RETURN_IF_ERROR(AddForwarder("", output_, -1, output));
    }
    if (!HasReader(STDERR_FILENO)) return absl::OkStatus();
    if (!SameStream(STDOUT_FILENO, STDERR_FILENO)) return AddForwarder("", error_, -1, error);
    error = FileDescriptor(fcntl(output.get(), F_DUPFD_CLOEXEC, 0));  // one pipe keeps the order of both
    if (error.valid()) return absl::OkStatus();
    return absl::UnavailableError(internal::ErrnoText("making a pipe", errno));
  }

  // Where a rank other than 0 writes.
  absl::Status Redirect(int rank, FileDescriptor& output, FileDescriptor& error) {
    const std::string prefix = absl::StrCat("[rank ", rank, "] ");
    int log = -1;
    if (options_.log_directory.empty()) {
      REPRISE_RETURN_IF_ERROR(AddForwarder(prefix, output_, -1, output));
    } else {
      REPRISE_ASSIGN_OR_RETURN(output, OpenLog(LogPath(rank)));
      logs_.emplace_back(fcntl(output.get(), F_DUPFD_CLOEXEC, 0));
      log = logs_.back().get();
      log_of_[forwarders_.size()] = rank;
      if (log < 0) return absl::UnavailableError(internal::ErrnoText(absl::StrCat("opening ", LogPath(rank)), errno));
    }
    return AddForwarder(prefix, ErrorWriter(), log, error);
  }

  absl::Status AddForwarder(const std::string& prefix, OutputWriter& target, int copy, FileDescriptor& write_end) {
    REPRISE_ASSIGN_OR_RETURN(internal::PipeEnds pipe, internal::MakePipe());
    write_end = std::move(pipe.write);
    forwarders_.emplace_back(std::move(pipe.read), prefix, &target, copy);
    return absl::OkStatus();
  }

  // Until then, or until `stop` holds.
  void HandleEventsUntil(const Deadline& deadline, absl::FunctionRef<bool()> stop) {
    while (!stop() && !deadline.passed()) {
      HandleEvents(deadline);
      Reap();
    }
  }

  // Waits for something to happen; forwards signals and lines.
  void HandleEvents(const Deadline& deadline) {
    constexpr absl::Duration kLookAgain = absl::Seconds(1);  // if another thread took the signal that a child ended
    std::vector<pollfd> files = {{signals_.fd(), POLLIN, 0}};
    for (const OutputWriter* writer : {&output_, &error_}) files.push_back({writer->wake_fd(), POLLIN, 0});
    for (const LineForwarder& forwarder : forwarders_) files.push_back({forwarder.fd(), POLLIN, 0});
    poll(files.data(), files.size(), deadline.OrAfter(kLookAgain).poll_timeout());
    for (OutputWriter* writer : {&output_, &error_}) writer->ClearWake();
    for (LineForwarder& forwarder : forwarders_) forwarder.Forward();
    while (const std::optional<int> signal = signals_.Next()) {
      if (*signal == SIGCHLD) continue;
      interrupted_by_ = *signal;
      SignalAll(*signal);
    }
  }

  // Who reads slowly gets everything, unless somebody or the timeout says that it is enough.
  void WriteTheRest() {
    for (size_t i = 0; i < forwarders_.size(); ++i) {
      forwarders_[i].Finish();
      const std::string loss = forwarders_[i].CopyLoss();
      if (!loss.empty()) log_losses_.push_back(absl::StrCat(LogPath(log_of_[i]), ": ", loss));
    }
    forwarders_.clear();  // a process that left the group may write on
    const Deadline soon(options_.grace);
    const auto written = [&] { return output_.done() && error_.done(); };
    HandleEventsUntil(timed_out_by_, [&] { return written() || interrupted_by_ != 0; });
    HandleEventsUntil(soon, written);
    written_ = written();
  }

  void Reap() {
    if (!ending_) group_.KeepGuarded();
    std::vector<Running> still_running;
    for (Running& child : running_) {
      const std::optional<ChildEnd> end = internal::PollChild(child.pid, child.stopped_by);
      if (!end.has_value()) {
        still_running.push_back(child);
      } else if (!ending_ && (end->signal != 0 || end->exit_code != 0)) {
        failures_.push_back({child.rank, *end});
      }
    }
    running_ = std::move(still_running);
    std::stable_partition(failures_.begin(), failures_.end(), [](const Failure& f) { return f.end.signal != 0; });
  }

  // The signal, or 0.
  int StoppedForTerminal() const {
    for (const Running& child : running_) {
      if (StopsForTerminal(child.stopped_by)) return child.stopped_by;
    }
    return 0;
  }

  std::vector<int> RunningRanks() const {
    std::vector<int> ranks;
    for (const Running& child : running_) ranks.push_back(child.rank);
    return ranks;
  }
  void SignalAll(int signal) {
    group_.Signal(signal);
    for (const Running& child : running_) internal::SignalIfOutside(child.pid, group_.id(), signal);
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
    for (const auto& [signal, ranks] : stopped_) {
      parts.push_back(absl::StrCat(internal::RankList(ranks), " of ", options_.ranks,
                                   ranks.size() == 1 ? " was" : " were", " stopped by ", SignalText(signal)));
      if (StopsForTerminal(signal)) {
        absl::StrAppend(&parts.back(), ", because one used the terminal, which ranks may neither read nor change, nor ",
                        "write to after \"stty tostop\"; redirect what it reads and writes");
      }
    }
    if (!ignored_signal_.empty()) {
      parts.push_back(absl::StrCat(internal::RankList(ignored_signal_), " of ", options_.ranks, " did not end by ",
                                   SignalText(interrupted_by_), " and had to be ended"));
    }
    if (!timed_out_.empty()) {
      parts.push_back(absl::StrCat(internal::RankList(timed_out_), " of ", options_.ranks, " did not end within ",
                                   absl::FormatDuration(options_.timeout)));
    }
    if (!ended_.empty()) parts.push_back(absl::StrCat(internal::RankList(ended_), " had to be ended"));
    bool lost = !log_losses_.empty();
    for (const OutputWriter* writer : {&output_, &error_}) {
      std::string loss = writer->Loss();
      if (!loss.empty()) parts.push_back(std::move(loss));
      lost |= writer->failed();
    }
    parts.insert(parts.end(), log_losses_.begin(), log_losses_.end());
    run.message = absl::StrJoin(parts, "; ");
    if (!failures_.empty()) {
      const ChildEnd& first = failures_.front().end;
      run.exit_code = first.signal != 0 ? 128 + first.signal : first.exit_code;
    } else if (used_terminal_by_ != 0) {
      run.exit_code = 128 + used_terminal_by_;
    } else if ((!written_ && interrupted_by_ != 0) || !ignored_signal_.empty()) {
      run.exit_code = 128 + interrupted_by_;
    } else if (!timed_out_.empty() || !written_) {
      run.exit_code = kTimeoutExitCode;
    } else if (lost) {
      run.exit_code = kLostOutputExitCode;
    }
    return run;
  }

  const LocalLaunchOptions& options_;
  const Deadline timed_out_by_;
  const DefaultChildSignal child_signal_;
  WaitingSignals signals_;
  OutputWriter output_, error_;
  internal::ProcessGroup group_;  // ends before the streams do
  std::vector<Running> running_;
  std::vector<LineForwarder> forwarders_;
  std::vector<FileDescriptor> logs_;
  std::map<size_t, int> log_of_;  // the rank, by the place of its forwarder in forwarders_
  std::vector<std::string> log_losses_;
  std::vector<Failure> failures_;  // signals first: others see that a rank is gone before it can be waited for
  int interrupted_by_ = 0;         // the last signal to this process
  bool written_ = false;           // all output, or its reader is gone
  bool ending_ = false;            // ranks that this process ends have not failed
  std::vector<int> ended_;         // after another failed
  std::vector<int> timed_out_;
  std::vector<int> ignored_signal_;          // interrupted_by_
  std::map<int, std::vector<int>> stopped_;  // by each signal, when the others were to be ended
  int used_terminal_by_ = 0;                 // the signal that stopped ranks for that
};

}  // namespace

absl::StatusOr<LocalRun> RunLocalRanks(const LocalLaunchOptions& options) {
  constexpr int kMaxRanks = 1024;
  if (options.ranks < 1 || options.ranks > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("the number of ranks to start is ", options.ranks, " but must be between 1 and ", kMaxRanks));
  }
  if (!options.log_directory.empty() && mkdir(options.log_directory.c_str(), 0777) != 0 && errno != EEXIST) {
    return absl::UnavailableError(internal::ErrnoText(absl::StrCat("making ", options.log_directory), errno));
  }
  LocalRanks ranks(options);
  REPRISE_RETURN_IF_ERROR(ranks.Start());
  return ranks.Wait();
}

}  // namespace reprise
