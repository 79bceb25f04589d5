// Finds the first command of a replay with a value that is not finite.
#ifndef REPRISE_GRAPH_FIND_NON_FINITE_H_
#define REPRISE_GRAPH_FIND_NON_FINITE_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "graph/bindings.h"
#include "graph/memory_probe.h"
#include "reprise/core/schedule.h"

namespace reprise::internal {

// What was found on the local ranks in one replay, or several after each other. Thread-safe.
class FirstNonFinite {
 public:
  struct Finding {
    int64_t place = -1;  // of the command among all that were replayed; -1: nothing was found
    std::string text = {};
  };
  // Keeps it if it is of an earlier command than what was found before.
  void Report(int local, CommandId command, std::string text);
  // Commands of other replays come after those of `schedule`.
  void EndReplay(const Schedule& schedule);
  Finding Of(int local) const;

 private:
  mutable std::mutex mutex_;
  int64_t commands_before_ = 0;
  std::map<int, Finding> findings_;  // by local rank
};

// Runs `launch`, which executes the command on local rank `local`, and reports to Bindings::non_finite what is not
// finite: of a Forward or Backward first what it reads, which is a parameter or an input if nothing was found before,
// then what it writes; of an Accumulate the sums over ranks.
absl::Status FindNonFinite(const Bindings& bindings, int local, CommandId id, const ScheduledCommand& command,
                           MemoryProbe& probe, absl::FunctionRef<absl::Status()> launch);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_FIND_NON_FINITE_H_
