#include "reprise/graph/local_launch.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "graph/comm/deadline.h"
#include "tests/graph/bootstrap_testing.h"
#include "tests/testing/run_executable.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kGrace = absl::Milliseconds(300);

LocalLaunchOptions Options(int ranks, const std::vector<std::string>& arguments) {
  LocalLaunchOptions options = {.ranks = ranks, .argv = {REPRISE_LOCAL_RANK_PROGRAM}, .grace = kGrace};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  return options;
}

std::string FileText(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Gone or a zombie that somebody else may reap: what a rank started is not this process's child.
bool Gone(pid_t pid) {
  const internal::Deadline deadline(absl::Seconds(10));
  while (kill(pid, 0) == 0) {
    const std::string state = FileText(absl::StrCat("/proc/", pid, "/stat"));
    if (state.find(") Z ") != std::string::npos || state.find(") X ") != std::string::npos) return true;
    if (deadline.passed()) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

std::vector<pid_t> Lingering(const std::string& directory, int ranks) {
  std::vector<pid_t> pids;
  for (int rank = 0; rank < ranks; ++rank) {
    std::istringstream text(FileText(absl::StrCat(directory, "/", rank)));
    pid_t rank_pid = 0, child = 0;
    EXPECT_TRUE(text >> rank_pid >> child) << "rank " << rank;
    pids.insert(pids.end(), {rank_pid, child});
  }
  return pids;
}

void ExpectNoChildren() {
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD) << "a child is left";
}

TEST(LocalLaunchTest, AllWellIsZeroWithoutAMessage) {
  for (const int ranks : {1, 2, 8}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const LocalRun run, RunLocalRanks(Options(ranks, {"exchange", "20", "-1"})));
    EXPECT_EQ(run.exit_code, 0) << run.message;
    EXPECT_EQ(run.message, "");
    ExpectNoChildren();
  }
}

TEST(LocalLaunchTest, OnlyTheRanksSeeTheirVariables) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const LocalRun run, RunLocalRanks(Options(2, {"environment"})));
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(getenv("REPRISE_RANK"), nullptr);
}

TEST(LocalLaunchTest, ExitCodeIsTheFailingRanks) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const LocalRun run, RunLocalRanks(Options(4, {"exit", "0", "0", "3", "0"})));
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_EQ(run.message, "rank 2 of 4 exited with code 3");
}

TEST(LocalLaunchTest, ASignalIsNamedAndTheOthersAreEnded) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const LocalRun run, RunLocalRanks(Options(3, {"signal", "1", absl::StrCat(SIGKILL)})));
  EXPECT_EQ(run.exit_code, 128 + SIGKILL);
  EXPECT_EQ(run.message, "rank 1 of 3 was ended by signal 9 (Killed); ranks 0, 2 had to be ended");
  ExpectNoChildren();
}

TEST(LocalLaunchTest, ARankKilledDuringExchangesIsNamedByAll) {
  const TemporaryDirectory logs;
  LocalLaunchOptions options = Options(4, {"exchange", "50", "2"});
  options.log_directory = logs.path() + "/made";
  options.grace = absl::Seconds(20);
  REPRISE_ASSERT_OK_AND_ASSIGN(const LocalRun run, RunLocalRanks(options));
  EXPECT_EQ(run.exit_code, 128 + SIGKILL);
  EXPECT_THAT(run.message,
              AllOf(HasSubstr("rank 2 of 4 was ended by signal 9"), HasSubstr("rank 0 of 4 exited with code 3"),
                    HasSubstr(logs.path()), Not(HasSubstr("had to be ended"))));
  EXPECT_THAT(FileText(options.log_directory + "/rank-3.log"),
              AllOf(HasSubstr("launched by reprise: rank 3 of 4 (local rank 3 of 4)"),
                    HasSubstr("UNAVAILABLE: rank 2 "), HasSubstr("connection")));
}

TEST(LocalLaunchTest, NothingIsLeftOfRanksThatIgnoreTheirEnd) {
  const TemporaryDirectory directory;
  REPRISE_ASSERT_OK_AND_ASSIGN(const LocalRun run, RunLocalRanks(Options(3, {"linger", directory.path(), "5"})));
  EXPECT_EQ(run.exit_code, 5);
  EXPECT_EQ(run.message, "rank 0 of 3 exited with code 5; ranks 1, 2 had to be ended");
  for (const pid_t pid : Lingering(directory.path(), 3)) EXPECT_TRUE(Gone(pid)) << pid;
  ExpectNoChildren();
}

TEST(LocalLaunchTest, NothingIsLeftOfRanksThatEndWell) {
  for (const char* when : {"now", "by SIGTERM"}) {
    const TemporaryDirectory directory;
    LocalLaunchOptions options = Options(2, {"leave", directory.path(), when});
    if (std::string(when) != "now") options.timeout = absl::Seconds(1);
    REPRISE_ASSERT_OK_AND_ASSIGN(const LocalRun run, RunLocalRanks(options));
    EXPECT_EQ(run.exit_code, std::string(when) == "now" ? 0 : 124) << run.message;
    for (const pid_t pid : Lingering(directory.path(), 2)) EXPECT_TRUE(Gone(pid)) << pid << " " << when;
    ExpectNoChildren();
  }
}

TEST(LocalLaunchTest, ARankThatLeftTheGroupIsEndedToo) {
  LocalLaunchOptions options = Options(2, {"leave_group"});
  options.timeout = absl::Milliseconds(200);
  REPRISE_ASSERT_OK_AND_ASSIGN(const LocalRun run, RunLocalRanks(options));
  EXPECT_EQ(run.message, "ranks 0, 1 of 2 did not end within 200ms");
  ExpectNoChildren();
}

TEST(LocalLaunchTest, ARankThatTheTerminalStopsHasFailed) {
  for (const int signal : {SIGTTIN, SIGTTOU}) {
    LocalLaunchOptions options = Options(3, {"signal", "1", absl::StrCat(signal)});
    options.timeout = absl::Seconds(20);
    REPRISE_ASSERT_OK_AND_ASSIGN(const LocalRun run, RunLocalRanks(options));
    EXPECT_EQ(run.exit_code, 128 + signal);
    EXPECT_THAT(run.message, HasSubstr(absl::StrCat("rank 1 of 3 was stopped by signal ", signal, " (Stopped (tty ")));
    EXPECT_THAT(run.message, AllOf(HasSubstr("used the terminal"), HasSubstr("; redirect what it reads and writes"),
                                   Not(HasSubstr("did not end within"))));
    ExpectNoChildren();
  }
}

TEST(LocalLaunchTest, ARankThatSomebodyStoppedIsNamedWhenTimeRunsOut) {
  LocalLaunchOptions options = Options(2, {"signal", "1", absl::StrCat(SIGSTOP)});
  options.timeout = absl::Milliseconds(300);
  REPRISE_ASSERT_OK_AND_ASSIGN(const LocalRun run, RunLocalRanks(options));
  EXPECT_EQ(run.exit_code, 124);
  EXPECT_EQ(run.message,
            "rank 1 of 2 was stopped by signal 19 (Stopped (signal)); ranks 0, 1 of 2 did not end within 300ms");
  ExpectNoChildren();
}

TEST(LocalLaunchTest, ExitsAreSeenWhereSigchldIsIgnored) {
  signal(SIGCHLD, SIG_IGN);
  const absl::StatusOr<LocalRun> good = RunLocalRanks(Options(2, {"exit", "0", "0"}));
  const absl::StatusOr<LocalRun> bad = RunLocalRanks(Options(2, {"exit", "0", "7"}));
  EXPECT_EQ(signal(SIGCHLD, SIG_DFL), SIG_IGN) << "the caller's action is back";
  ASSERT_THAT(good, IsOk());
  EXPECT_EQ(good->exit_code, 0) << good->message;
  ASSERT_THAT(bad, IsOk());
  EXPECT_EQ(bad->message, "rank 1 of 2 exited with code 7");
}

TEST(LocalLaunchTest, ALogThatTakesNothingIsNoSuccess) {
  const TemporaryDirectory logs;
  LocalLaunchOptions options = Options(2, {"print"});
  options.log_directory = logs.path();
  std::filesystem::create_symlink("/dev/full", logs.path() + "/rank-1.log");
  ::testing::internal::CaptureStderr();
  const absl::StatusOr<LocalRun> run = RunLocalRanks(options);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("[rank 1] error of rank 1\n"));
  ASSERT_THAT(run, IsOk());
  EXPECT_EQ(run->exit_code, 74);
  EXPECT_EQ(run->message, absl::StrCat(logs.path(), "/rank-1.log: ", sizeof("error of rank 1\n") - 1,
                                       " bytes were dropped: No space left on device"));
}

TEST(LocalLaunchTest, TimeRunsOut) {
  LocalLaunchOptions options = Options(2, {"signal", "-1", "0"});
  options.timeout = absl::Milliseconds(200);
  REPRISE_ASSERT_OK_AND_ASSIGN(const LocalRun run, RunLocalRanks(options));
  EXPECT_EQ(run.exit_code, 124);
  EXPECT_EQ(run.message, "ranks 0, 1 of 2 did not end within 200ms");
  ExpectNoChildren();
}

TEST(LocalLaunchTest, OutputOfAllRanksAppears) {
  const FinishedRun run = RunExecutable(REPRISE_LOCAL_RANK_PROGRAM, "--ranks=3 print 2>&1");
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.output, AllOf(HasSubstr("line 2 of rank 0\n"), HasSubstr("[rank 1] line 0 of rank 1\n"),
                                HasSubstr("[rank 2] error of rank 2\n"), HasSubstr("[rank 2] no newline\n")));
  EXPECT_THAT(run.output, Not(HasSubstr("[rank 0]")));
}

TEST(LocalLaunchTest, ALogHoldsAllOfARankAndItsErrorsAppearToo) {
  const TemporaryDirectory logs;
  LocalLaunchOptions options = Options(2, {"print"});
  options.log_directory = logs.path();
  ::testing::internal::CaptureStderr();
  const absl::StatusOr<LocalRun> run = RunLocalRanks(options);
  const std::string errors = ::testing::internal::GetCapturedStderr();
  ASSERT_THAT(run, IsOk());
  EXPECT_THAT(errors, AllOf(HasSubstr("[rank 1] error of rank 1\n"), Not(HasSubstr("line 2 of rank 1"))));
  EXPECT_THAT(FileText(logs.path() + "/rank-1.log"),
              AllOf(HasSubstr("line 2 of rank 1\n"), HasSubstr("error of rank 1\n"), HasSubstr("no newline")));
  EXPECT_FALSE(std::filesystem::exists(logs.path() + "/rank-0.log"));
}

TEST(LocalLaunchTest, AProgramStartsItselfAsRanks) {
  EXPECT_EQ(RunExecutable(REPRISE_LOCAL_RANK_PROGRAM, "--ranks=4 exchange 5 -1 >/dev/null").exit_code, 0);
  EXPECT_EQ(RunExecutable(REPRISE_LOCAL_RANK_PROGRAM, "--ranks=2 exit 0 9 2>/dev/null").exit_code, 9);
}

TEST(LocalLaunchTest, WhatCannotBeStartedIsNamed) {
  EXPECT_THAT(RunLocalRanks({.ranks = 2, .argv = {"no-such-program-of-ours"}}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("running no-such-program-of-ours: No such file")));
  EXPECT_THAT(RunLocalRanks({.ranks = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the number of ranks to start is 0 but")));
  LocalLaunchOptions options = Options(2, {"print"});
  options.log_directory = "/proc/none";
  EXPECT_THAT(RunLocalRanks(options), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/proc/none")));
  const TemporaryDirectory logs;
  options.log_directory = logs.path();
  ASSERT_EQ(mkfifo((logs.path() + "/rank-1.log").c_str(), 0600), 0);
  EXPECT_THAT(RunLocalRanks(options), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/rank-1.log")));
  ExpectNoChildren();
}

// A launcher in a process of its own, whose ranks linger.
class LauncherProcessTest : public ::testing::Test {
 protected:
  void StartLauncher(const char* what = "linger") {
    launcher_ = fork();
    if (launcher_ == 0) {
      execl(REPRISE_LOCAL_RANK_PROGRAM, REPRISE_LOCAL_RANK_PROGRAM, "--ranks=3", what, directory_.path().c_str(), "-1",
            nullptr);
      _exit(127);
    }
    const internal::Deadline deadline(absl::Seconds(30));
    for (int rank = 0; rank < 3; ++rank) {
      while (!std::filesystem::exists(absl::StrCat(directory_.path(), "/", rank)) && !deadline.passed()) {
        absl::SleepFor(absl::Milliseconds(2));
      }
    }
    pids_ = Lingering(directory_.path(), 3);
  }
  int SignalAndWait(int signal) const {
    kill(launcher_, signal);
    int status = 0;
    waitpid(launcher_, &status, 0);
    return status;
  }

  const TemporaryDirectory directory_;
  pid_t launcher_ = 0;
  std::vector<pid_t> pids_;  // of each rank, and of the process that it started
};

TEST_F(LauncherProcessTest, SignalsGoToTheRanks) {
  for (const int signal : {SIGTERM, SIGINT}) {
    StartLauncher();
    const int status = SignalAndWait(signal);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 128 + signal) << "that ended a rank, and then the others were";
    for (const pid_t pid : pids_) EXPECT_TRUE(Gone(pid)) << pid;
    for (int rank = 0; rank < 3; ++rank) std::filesystem::remove(absl::StrCat(directory_.path(), "/", rank));
  }
}

TEST_F(LauncherProcessTest, RanksThatIgnoreSignalsAreEnded) {
  for (const int signal : {SIGTERM, SIGINT}) {
    StartLauncher("deaf");
    const int status = SignalAndWait(signal);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 128 + signal);
    for (const pid_t pid : pids_) EXPECT_TRUE(Gone(pid)) << pid;
    for (int rank = 0; rank < 3; ++rank) std::filesystem::remove(absl::StrCat(directory_.path(), "/", rank));
  }
}

TEST_F(LauncherProcessTest, RanksThatWereStoppedHearSignals) {
  StartLauncher();
  for (const pid_t pid : pids_) kill(pid, SIGSTOP);
  const int status = SignalAndWait(SIGINT);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGINT) << "which ended ranks: SIGKILL would have been no failure of theirs";
  for (const pid_t pid : pids_) EXPECT_TRUE(Gone(pid)) << pid;
}

TEST_F(LauncherProcessTest, ARankThatIsContinuedGoesOn) {
  StartLauncher("leave");
  kill(pids_[0], SIGSTOP);
  absl::SleepFor(absl::Milliseconds(700));  // more than twice the launcher's grace
  EXPECT_EQ(waitpid(launcher_, nullptr, WNOHANG), 0) << "it waits";
  kill(pids_[0], SIGCONT);
  const int status = SignalAndWait(SIGTERM);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "ranks of \"leave\" exit with 0 then";
}

TEST_F(LauncherProcessTest, NothingIsLeftThoughTheGuardWasKilled) {
  StartLauncher();
  const pid_t group = getpgid(pids_[0]);
  ASSERT_NE(group, getpgid(0));
  ASSERT_EQ(kill(group, SIGKILL), 0);
  const internal::Deadline deadline(absl::Seconds(30));
  const auto guarded = [&] {
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const pid_t pid = std::atoi(entry.path().filename().c_str());
      if (pid > 0 && pid != group && getpgid(pid) == group && std::count(pids_.begin(), pids_.end(), pid) == 0) {
        return true;
      }
    }
    return false;
  };
  while (!guarded() && !deadline.passed()) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(guarded());
  absl::SleepFor(absl::Milliseconds(100));  // until it asked for the signal of the launcher's end
  EXPECT_TRUE(WIFSIGNALED(SignalAndWait(SIGKILL)));
  for (const pid_t pid : pids_) EXPECT_TRUE(Gone(pid)) << pid;
}

TEST_F(LauncherProcessTest, RanksDieWithTheLauncher) {
  StartLauncher();
  EXPECT_TRUE(WIFSIGNALED(SignalAndWait(SIGKILL)));
  for (size_t i = 0; i < pids_.size(); ++i) EXPECT_TRUE(Gone(pids_[i])) << (i % 2 == 0 ? "rank " : "of rank ") << i / 2;
}

}  // namespace
}  // namespace reprise::testing
