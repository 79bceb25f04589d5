// Starts a program as several ranks on this host, for those who have no torchrun, mpirun or srun, and for tests:
//
//   const absl::StatusOr<LaunchEnvironment> launch = DetectLaunch();
//   if (ranks > 1 && launch->launcher == Launcher::kNone) {  // not a rank yet: start them and wait
//     const absl::StatusOr<LocalRun> run = RunLocalRanks({.ranks = ranks});
//     ... print run.status() or run->message, return run->exit_code from main
//   }
#ifndef REPRISE_GRAPH_LOCAL_LAUNCH_H_
#define REPRISE_GRAPH_LOCAL_LAUNCH_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace reprise {

struct LocalLaunchOptions {
  int ranks = 1;
  // The program, looked up in PATH, and its arguments. Empty: this very program with the arguments it was given.
  std::vector<std::string> argv = {};
  // After that time the ranks are ended.
  absl::Duration timeout = absl::InfiniteDuration();
  // Once a rank failed, the others have that long to say what they saw and end by themselves; then they get SIGTERM,
  // and after as long again SIGKILL.
  absl::Duration grace = absl::Seconds(5);
  // Rank 0 writes where this process does. What rank r > 0 writes to standard output and error appears there too, each
  // line with "[rank r] " in front. With a directory, which is made if need be, that of rank r is kept in rank-<r>.log
  // there instead, and only its standard error appears as well. Only rank 0 has this process's standard input, and it
  // may not read a terminal.
  std::string log_directory = {};
};

struct LocalRun {
  // 0 if all ranks ended with 0. Otherwise that of the rank which failed first: 128 + its number if a signal ended it,
  // and that counts before the exits of others, which mostly follow from it. 124 if time ran out.
  int exit_code = 0;
  // Empty if all went well. Otherwise what happened to which ranks: "rank 2 of 4 was ended by signal 9 (Killed); ...".
  std::string message = {};
};

// Returns when all ranks have ended, with none of them left. SIGINT and SIGTERM that this process gets meanwhile go to
// the ranks. If it dies the ranks are killed. Only the ranks' environment says that they are ranks (REPRISE_RANK and so
// on; LaunchEnvironment tells more).
//
// Call it early in main, before there are other threads: signals are waited for by the calling thread alone.
// InvalidArgument if `options` make no sense; NotFound if the program cannot be run; Unavailable if the system has no
// process or file left.
absl::StatusOr<LocalRun> RunLocalRanks(const LocalLaunchOptions& options);

}  // namespace reprise

#endif  // REPRISE_GRAPH_LOCAL_LAUNCH_H_
