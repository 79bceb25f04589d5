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
  // Once a rank failed, or this process got SIGINT or SIGTERM, the ranks have that long to say what they saw and end by
  // themselves; then they get SIGTERM, and after as long again SIGKILL. Give it the time of a checkpoint if a signal
  // makes ranks write one.
  absl::Duration grace = absl::Seconds(5);
  // What rank 0 writes appears on this process's standard output and error as it is: on a terminal or a file rank 0
  // itself writes it, a pipe this process fills for it. What rank r > 0 writes appears there too, each line with
  // "[rank r] " in front. With a directory, which is made if need be, that of rank r is kept in rank-<r>.log there
  // instead, and only its standard error appears as well. Only rank 0 has this process's standard input, and it may not
  // read a terminal.
  //
  // A reader that stalls (a pager, an ssh without network) holds up the ranks that write, as it would one process, but
  // neither the timeout nor signals. A reader that goes ends nobody: what comes after is dropped. Output that waits for
  // its reader when the ranks have ended is written until the timeout, or until SIGINT or SIGTERM; then it is dropped
  // after `grace`.
  std::string log_directory = {};
};

struct LocalRun {
  // 0 if all ranks ended with 0. Otherwise that of the rank which failed first: 128 + its number if a signal ended it,
  // and that counts before the exits of others, which mostly follow from it. 128 + SIGTTIN or SIGTTOU if that stopped a
  // rank; 128 + the number of the SIGINT or SIGTERM that ranks did not end by within `grace`; 124 if time ran out.
  // Where all ranks ended with 0 but output waited for its reader: 124, or 128 + the number of the signal that ended
  // the wait. Where it could not be written otherwise (a full disk; a log too): 74. Output whose reader went changes
  // nothing.
  int exit_code = 0;
  // Empty if all went well. Otherwise what happened to which ranks, and what output was lost: "rank 2 of 4 was ended by
  // signal 9 (Killed); ...; 512 bytes of standard output were dropped: Broken pipe".
  std::string message = {};
};

// Returns when all ranks have ended. SIGINT and SIGTERM that this process gets meanwhile, from the terminal or from
// anybody, go to the ranks and what they started, with SIGCONT for what is stopped; ranks that do not end by them are
// ended, as `grace` says. A rank that the system stops because it uses the terminal (SIGTTIN, SIGTTOU) has failed, and
// all are ended at once: ranks are in a background process group. One that somebody stops may be continued; the message
// names it if the ranks had to be ended meanwhile. Only the ranks' environment says that they are ranks (REPRISE_RANK
// and so on; LaunchEnvironment tells more).
//
// No process is left behind, whether this returns or this process is ended by any signal, SIGKILL too: ranks die with
// it, and all that ranks started is in one process group with a process of its own that kills the group then (and is
// replaced if somebody ends it). When this returns the group is killed as well, also what ranks that ended with 0 left.
// What leaves the group, as a daemon that calls setsid does, is out of reach; so is everything but the ranks if that
// process is killed together with this one.
//
// Call it early in main, before there are other threads: signals are waited for by the calling thread alone, a copy of
// this process starts each rank, and SIGCHLD has its default action meanwhile, in the ranks too. InvalidArgument if
// `options` make no sense; NotFound if the program cannot be run; Unavailable if the system has no process or file
// left.
absl::StatusOr<LocalRun> RunLocalRanks(const LocalLaunchOptions& options);

}  // namespace reprise

#endif  // REPRISE_GRAPH_LOCAL_LAUNCH_H_
