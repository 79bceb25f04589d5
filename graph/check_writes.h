// Finds compute functions that do not write what they declared, or write what they did not.
#ifndef REPRISE_GRAPH_CHECK_WRITES_H_
#define REPRISE_GRAPH_CHECK_WRITES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "graph/bindings.h"
#include "graph/memory_probe.h"
#include "reprise/core/schedule.h"

namespace reprise::internal {

// How a Forward or Backward is made to run. Both functions are called once for each run, in this order.
struct CheckedWork {
  // Calls the compute function. On a device its work runs from here on; with `as_recorded` after it was captured.
  absl::FunctionRef<absl::Status(bool as_recorded)> enqueue;
  // Runs what was enqueued, where `enqueue` does not.
  absl::FunctionRef<absl::Status()> execute;
  bool runs_at_once = false;  // in `enqueue`
};

// Runs the Forward or Backward two or more times on local rank `local` and compares, see RunOptions::check_writes. In
// each run what it assigns, and scratch, first hold one pattern or another, and what it adds to holds zeros, or, in
// further runs where there is such a gradient, a number about as large as what is added. Where work runs after the
// call, what it may read, but for external inputs and the control block, holds one of two patterns until then.
// FailedPrecondition, with call, phase, rank, name, number of elements and the remedy, for
//   elements that the call leaves as they were or whose bits depend on what was there, and a second run, as recorded,
//   that gives other bits;
//   a gradient to add to that is assigned, or does not differ by what it started from within the rounding of its dtype;
//   a change of what it may only read, or of Bindings::scratch_guard bytes behind scratch;
//   on the host, writes that were made while the function was called, and bits that depend on what it read then.
// Then what it assigned holds its results, and what it added to holds what it added. The digests of these, by use, go
// to `digests` unless it is null.
absl::Status CheckWrites(const Bindings& bindings, int local, const ScheduledCommand& command, MemoryProbe& probe,
                         const CheckedWork& work, std::vector<uint64_t>* digests);

// Runs recorded work of the command once, from such a start. FailedPrecondition if it does not give the `digests`.
absl::Status CheckRecordedWrites(const Bindings& bindings, int local, const ScheduledCommand& command,
                                 MemoryProbe& probe, absl::FunctionRef<absl::Status()> execute,
                                 const std::vector<uint64_t>& digests);

// What CheckWrites found for the commands of a plan, replay after replay. Thread-safe.
class WriteDigests {
 public:
  void Add(int schedule, CommandId command, int local, std::vector<uint64_t> digests);
  // What was added first and not taken; empty if there is nothing.
  std::vector<uint64_t> Take(int schedule, CommandId command, int local);

 private:
  std::mutex mutex_;
  std::map<std::tuple<int, CommandId, int>, std::deque<std::vector<uint64_t>>> digests_;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CHECK_WRITES_H_
