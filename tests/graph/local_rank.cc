// A program for the launcher's tests, started as ranks: local_rank WHAT [ARGUMENT...].
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "graph/comm/bootstrap.h"
#include "reprise/graph/local_launch.h"

namespace reprise {
namespace {

// Exits with the argument of its number.
int Exit(const LaunchEnvironment& launch, char** arguments) { return std::atoi(arguments[launch.rank]); }

// Rank arguments[0] ends by signal arguments[1]; the others wait.
int Signal(const LaunchEnvironment& launch, char** arguments) {
  if (launch.rank == std::atoi(arguments[0])) raise(std::atoi(arguments[1]));
  pause();
  return 0;
}

// Leaves its number, and that of a process that it starts, in the directory arguments[0], and waits. It ignores
// SIGTERM, except rank 0, which exits with arguments[1] once all are there, unless that is negative.
int Linger(const LaunchEnvironment& launch, char** arguments) {
  if (launch.rank > 0) signal(SIGTERM, SIG_IGN);
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const std::string path = absl::StrCat(arguments[0], "/", launch.rank);
  std::ofstream(path + ".part") << getpid() << " " << child << std::endl;
  std::rename((path + ".part").c_str(), path.c_str());
  for (int rank = 0; launch.rank == 0 && rank < launch.size; ++rank) {
    while (access(absl::StrCat(arguments[0], "/", rank).c_str(), F_OK) != 0) usleep(1000);
  }
  const int code = std::atoi(arguments[1]);
  if (launch.rank == 0 && code >= 0) return code;
  while (true) pause();
}

// Leaves its number, twice, in the directory arguments[0], and waits, whatever SIGINT and SIGTERM say.
int Deaf(const LaunchEnvironment& launch, char** arguments) {
  for (const int deaf : {SIGINT, SIGTERM}) signal(deaf, SIG_IGN);
  const std::string path = absl::StrCat(arguments[0], "/", launch.rank);
  std::ofstream(path + ".part") << getpid() << " " << getpid() << std::endl;
  std::rename((path + ".part").c_str(), path.c_str());
  while (true) pause();
}

// Starts a process that waits, whatever SIGTERM says, and leaves both numbers in the directory arguments[0]. Exits with
// 0: at once if arguments[1] is "now", else by SIGTERM.
int Leave(const LaunchEnvironment& launch, char** arguments) {
  signal(SIGTERM, SIG_IGN);
  const pid_t child = fork();
  if (child == 0) {
    while (true) pause();
  }
  signal(SIGTERM, [](int) { _exit(0); });
  const std::string path = absl::StrCat(arguments[0], "/", launch.rank);
  std::ofstream(path + ".part") << getpid() << " " << child << std::endl;
  std::rename((path + ".part").c_str(), path.c_str());
  while (std::string(arguments[1]) != "now") pause();
  return 0;
}

// Waits in a session of its own, which signals to the launcher's group do not reach.
int LeaveGroup() {
  if (setsid() < 0) return 1;
  while (true) pause();
}

// Rank arguments[0], or every one if that is -1, prints arguments[1] lines of 64 bytes, without end if that is
// negative. Then every rank makes a file in the directory arguments[2], unless that is missing.
int Flood(const LaunchEnvironment& launch, int count, char** arguments) {
  const int rank = std::atoi(arguments[0]), lines = std::atoi(arguments[1]);
  const std::string line = std::string(63, static_cast<char>('0' + launch.rank % 10)) + "\n";
  for (int i = 0; (rank < 0 || rank == launch.rank) && (lines < 0 || i < lines); ++i) {
    if (fwrite(line.data(), 1, line.size(), stdout) != line.size()) return 4;
  }
  if (fflush(stdout) != 0) return 4;
  if (count > 2) std::ofstream(absl::StrCat(arguments[2], "/", launch.rank)) << "done";
  return 0;
}

int Print(const LaunchEnvironment& launch) {
  for (int line = 0; line < 3; ++line) std::cout << "line " << line << " of rank " << launch.rank << "\n";
  std::cerr << "error of rank " << launch.rank << std::endl;
  std::cout << "no newline" << std::flush;
  return 0;
}

// arguments[0] exchanges. Rank arguments[1] kills itself in the middle of them.
int Exchange(const LaunchEnvironment& launch, char** arguments) {
  std::cout << ToString(launch) << std::endl;
  auto bootstrap = internal::Bootstrap::Connect(launch, absl::Seconds(60));
  const int rounds = std::atoi(arguments[0]), killed = std::atoi(arguments[1]);
  for (int round = 0; bootstrap.ok() && round < rounds; ++round) {
    if (launch.rank == killed && round == rounds / 2) raise(SIGKILL);
    const auto part = [&](int rank) {
      std::mt19937 random(static_cast<uint32_t>(1000 * round + rank));
      return std::string(round == 10 ? size_t{4} << 20 : random() % 3000, static_cast<char>('a' + rank));
    };
    const auto all = (*bootstrap)->Exchange("parts", part(launch.rank));
    if (!all.ok()) bootstrap = all.status();
    for (int rank = 0; bootstrap.ok() && rank < launch.size; ++rank) {
      if ((*all)[rank] != part(rank)) bootstrap = absl::DataLossError(absl::StrCat("part of rank ", rank));
    }
  }
  if (bootstrap.ok()) return 0;
  std::cerr << bootstrap.status() << std::endl;
  return 3;
}

int Run(const LaunchEnvironment& launch, int count, char** arguments) {
  const std::string what = count > 0 ? arguments[0] : "";
  if (what == "exit") return Exit(launch, arguments + 1);
  if (what == "signal") return Signal(launch, arguments + 1);
  if (what == "linger") return Linger(launch, arguments + 1);
  if (what == "deaf") return Deaf(launch, arguments + 1);
  if (what == "leave") return Leave(launch, arguments + 1);
  if (what == "leave_group") return LeaveGroup();
  if (what == "flood") return Flood(launch, count - 1, arguments + 1);
  if (what == "print") return Print(launch);
  if (what == "exchange") return Exchange(launch, arguments + 1);
  if (what == "environment") return std::getenv("REPRISE_RANK") == nullptr ? 1 : 0;
  std::cerr << "unknown: " << what << std::endl;
  return 2;
}

}  // namespace
}  // namespace reprise

// As programs of users do: with --ranks=N it starts itself as N ranks; with --ranks=N,MILLISECONDS for that long.
int main(int count, char** arguments) {
  const absl::StatusOr<reprise::LaunchEnvironment> launch = reprise::DetectLaunch();
  if (!launch.ok()) {
    std::cerr << launch.status() << std::endl;
    return 2;
  }
  const std::string first = count > 1 ? arguments[1] : "";
  if (first.rfind("--ranks=", 0) != 0) return reprise::Run(*launch, count - 1, arguments + 1);
  if (launch->launcher != reprise::Launcher::kNone) return reprise::Run(*launch, count - 2, arguments + 2);
  reprise::LocalLaunchOptions options = {.ranks = std::atoi(first.c_str() + 8), .grace = absl::Milliseconds(300)};
  const size_t comma = first.find(',');
  if (comma != std::string::npos) options.timeout = absl::Milliseconds(std::atoi(first.c_str() + comma + 1));
  const auto run = reprise::RunLocalRanks(options);
  std::cerr << (run.ok() ? run->message : run.status().ToString()) << std::endl;
  return run.ok() ? run->exit_code : 2;
}
