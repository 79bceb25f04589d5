// The launcher's output, whatever its reader does: a program in a process of its own, with pipes for its streams.
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "graph/comm/deadline.h"
#include "graph/comm/pipe_ends.h"
#include "reprise/graph/local_launch.h"
#include "tests/graph/bootstrap_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// What any of this takes on a loaded machine. A launcher that waits for its reader takes for ever.
constexpr absl::Duration kPatient = absl::Seconds(30);
constexpr int kLines = 16384;  // 1 MiB, many times what a pipe holds
constexpr size_t kLineBytes = 64, kPrefixBytes = sizeof("[rank 1] ") - 1;

class LauncherOutputTest : public ::testing::Test {
 protected:
  void SetUp() override {
    REPRISE_ASSERT_OK_AND_ASSIGN(internal::PipeEnds pipe, internal::MakePipe());
    output_ = std::move(pipe.read);
    write_end_ = std::move(pipe.write);
  }
  void TearDown() override {
    if (launcher_ != 0) kill(launcher_, SIGKILL);
  }

  // Its standard output is the pipe, or a file; its standard error a file.
  void Start(const std::vector<std::string>& arguments, const char* output = nullptr) {
    launcher_ = fork();
    if (launcher_ == 0) {
      signal(SIGPIPE, SIG_DFL);
      dup2(output == nullptr ? write_end_.get() : open(output, O_WRONLY), STDOUT_FILENO);
      dup2(open(ErrorPath().c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
      std::vector<char*> argv = {const_cast<char*>(REPRISE_LOCAL_RANK_PROGRAM)};
      for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
      argv.push_back(nullptr);
      execv(REPRISE_LOCAL_RANK_PROGRAM, argv.data());
      _exit(127);
    }
    write_end_.Close();
  }

  // As a shell says it: 128 + its number for a signal. Nothing if it does not end.
  std::optional<int> Wait() {
    const internal::Deadline deadline(kPatient);
    int status = 0;
    while (waitpid(launcher_, &status, WNOHANG) == 0) {
      if (deadline.passed()) return std::nullopt;
      absl::SleepFor(absl::Milliseconds(5));
    }
    launcher_ = 0;
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  // Until it takes no more: pages that are not full count, so that there is no number to wait for.
  void WaitForFullPipe() const {
    const internal::Deadline deadline(kPatient);
    for (int count = 0, before = -1; !deadline.passed() && (count < 30000 || count != before);) {
      before = count;
      absl::SleepFor(absl::Milliseconds(150));
      ioctl(output_.get(), FIONREAD, &count);
    }
  }
  // Until nobody writes any more.
  std::string ReadAll() const {
    std::string text;
    char bytes[65536];
    for (ssize_t n = 0; (n = read(output_.get(), bytes, sizeof(bytes))) > 0;)
      text.append(bytes, static_cast<size_t>(n));
    return text;
  }
  std::string ErrorPath() const { return directory_.path() + "/errors"; }
  std::string Errors() const {
    std::ifstream file(ErrorPath());
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  bool Finished(int rank) const { return std::filesystem::exists(absl::StrCat(directory_.path(), "/", rank)); }

  const TemporaryDirectory directory_;
  internal::FileDescriptor output_, write_end_;
  pid_t launcher_ = 0;
};

TEST_F(LauncherOutputTest, AStalledReaderDoesNotHoldUpTheTimeout) {
  Start({"--ranks=2,500", "flood", "-1", absl::StrCat(kLines)});
  EXPECT_EQ(Wait(), 124);
  EXPECT_THAT(Errors(), AllOf(HasSubstr("ranks 0, 1 of 2 did not end within 500ms"),
                              HasSubstr(" bytes of standard output were dropped: its reader did not take them")));
}

TEST_F(LauncherOutputTest, ALauncherWhoseReaderStallsHearsSignals) {
  for (const int signal : {SIGTERM, SIGINT}) {
    SetUp();
    Start({"--ranks=2", "flood", "1", absl::StrCat(kLines)});
    WaitForFullPipe();
    kill(launcher_, signal);
    EXPECT_EQ(Wait(), 128 + signal);
    EXPECT_THAT(Errors(), AllOf(HasSubstr(absl::StrCat("rank 1 of 2 was ended by signal ", signal)),
                                HasSubstr("bytes of standard output were dropped")));
  }
}

TEST_F(LauncherOutputTest, ASignalEndsTheWaitForAReaderOfRanksThatEnded) {
  // Less than the launcher keeps, so that the ranks end; more than the pipe takes.
  Start({"--ranks=2", "flood", "1", absl::StrCat(160 * 1024 / kLineBytes), directory_.path()});
  WaitForFullPipe();
  const internal::Deadline deadline(kPatient);
  while (!(Finished(0) && Finished(1)) && !deadline.passed()) absl::SleepFor(absl::Milliseconds(5));
  absl::SleepFor(absl::Milliseconds(100));
  kill(launcher_, SIGTERM);
  EXPECT_EQ(Wait(), 128 + SIGTERM);
  EXPECT_THAT(Errors(), HasSubstr("bytes of standard output were dropped"));
}

TEST_F(LauncherOutputTest, AReaderThatGoesEndsNobody) {
  Start({"--ranks=3", "flood", "-1", absl::StrCat(kLines), directory_.path()});
  WaitForFullPipe();
  output_.Close();
  EXPECT_EQ(Wait(), 0);
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(Finished(rank)) << "rank " << rank;
  EXPECT_THAT(Errors(), HasSubstr(" bytes of standard output were dropped: Broken pipe"));
}

TEST_F(LauncherOutputTest, AFullDiskIsNoSuccess) {
  Start({"--ranks=3", "flood", "1", "10", directory_.path()}, "/dev/full");
  EXPECT_EQ(Wait(), 74);
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(Finished(rank)) << "rank " << rank;
  EXPECT_THAT(Errors(), HasSubstr(absl::StrCat(10 * (kLineBytes + kPrefixBytes),
                                               " bytes of standard output were dropped: No space left on device")));
}

TEST_F(LauncherOutputTest, ASlowReaderGetsEverything) {
  Start({"--ranks=3", "flood", "-1", absl::StrCat(kLines)});
  WaitForFullPipe();
  absl::SleepFor(absl::Milliseconds(500));  // more than the launcher's grace
  const std::string text = ReadAll();
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(text.size(), kLines * (3 * kLineBytes + 2 * kPrefixBytes));
  EXPECT_EQ(Errors(), "\n");
}

TEST_F(LauncherOutputTest, RanksThatPrintWithoutEndDoNotHoldUpTheTimeout) {
  Start({"--ranks=3,300", "flood", "-1", "-1"}, "/dev/null");
  EXPECT_EQ(Wait(), 124);
}

TEST_F(LauncherOutputTest, BothStreamsInOnePipeKeepTheirOrder) {
  launcher_ = fork();
  if (launcher_ == 0) {
    dup2(write_end_.get(), STDOUT_FILENO);
    dup2(write_end_.get(), STDERR_FILENO);
    execl(REPRISE_LOCAL_RANK_PROGRAM, REPRISE_LOCAL_RANK_PROGRAM, "--ranks=1", "print", nullptr);
    _exit(127);
  }
  write_end_.Close();
  const std::string text = ReadAll();
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(text, "line 0 of rank 0\nline 1 of rank 0\nline 2 of rank 0\nerror of rank 0\nno newline\n");
}

TEST_F(LauncherOutputTest, WithoutStandardStreamsRanksMeetAsWell) {
  launcher_ = fork();
  if (launcher_ == 0) {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(fd);
    execl(REPRISE_LOCAL_RANK_PROGRAM, REPRISE_LOCAL_RANK_PROGRAM, "--ranks=3", "exchange", "20", "-1", nullptr);
    _exit(127);
  }
  EXPECT_EQ(Wait(), 0);
}

}  // namespace
}  // namespace reprise::testing
