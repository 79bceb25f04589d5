// The ranks of a job. CreateHostWorld and CreateCudaWorld make worlds; parameters and sessions are made from one.
//
// Threads: one at a time in a World and in what is made from it, parameters and sessions. A call that another thread
// makes while one is inside is refused (FailedPrecondition, naming the call that is inside) and changes nothing.
// Threads may take turns at whole steps and whole evaluations, see the sessions. Calls of one thread may nest, as from
// an initializer. Destructors cannot refuse: destroy an object, or the last owner of one, while no other thread is
// inside. Functions marked (c) are collective: the same calls in the same order on every rank.
//
// Where ranks are in several processes each collective call but a launch compares itself with those of the other ranks,
// and what was launched before it: ranks that differ all get the same FailedPrecondition, which names what each of them
// does, and nothing was changed. The next call is in order again, unless ranks launched different things: then the
// world can launch no more, and every later call repeats that error.
#ifndef REPRISE_GRAPH_WORLD_H_
#define REPRISE_GRAPH_WORLD_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "reprise/core/plan.h"
#include "reprise/core/timeline.h"

namespace reprise {
namespace internal {
class Machine;
}

// Bytes that a world has taken of each local rank's device memory.
struct MemoryUse {
  int64_t requested = 0;      // for parameters and sessions that still live
  int64_t rounding = 0;       // that the device added to these
  int64_t recording = 0;      // by what was recorded
  int64_t communication = 0;  // by all else since the world was made: communicators, kernels' code, working memory
  int64_t context = 0;        // in use before the world was made, by other processes too
};

class World {
 public:
  virtual ~World() = default;
  virtual int size() const = 0;
  // Ranks driven by this process, ascending: one with CUDA, all of them in a HostWorld.
  virtual absl::Span<const int> local_ranks() const = 0;

  // (c) Sum over ranks, in rank order; every rank gets the same. `of` says what is summed, as "losses": sums that are
  // not of the same thing are refused.
  absl::StatusOr<double> Sum(absl::Span<const double> one_per_local_rank, absl::string_view of = "values");
  // Waits for everything launched. Errors of replays that return before they are done are found here; they mean that
  // the world is of no further use. What a replay returned itself is not repeated.
  virtual absl::Status Synchronize() = 0;
  // All zero where the memory is the host's, and while another thread is inside a call.
  virtual MemoryUse memory() const = 0;

  // (c) From now on, until StopProfile, replays of recordings of this plan, or of one that is equal, are timed; they
  // may take longer than others. Those of a session that is created meanwhile are among them, its warm-up too; all are
  // numbered in launch order. Waits. On devices one profile per process is open at a time, and the thread that starts
  // it is the one that replays. Unavailable where a rank cannot (on devices: without CUPTI, or while another profiler
  // uses it), FailedPrecondition while a profile is open, InvalidArgument for a plan of another world size.
  absl::Status StartProfile(const Plan& plan);
  // (c) Waits. The spans of all ranks; none if nothing was replayed. Ranks on one host share a clock; on several, times
  // are those of each host's clock. FailedPrecondition if no profile is open.
  absl::StatusOr<Timeline> StopProfile();

 private:
  friend class internal::Machine;  // what sessions see of it: every world is one
  World() = default;
  bool profiles_ = false;
};

}  // namespace reprise

#endif  // REPRISE_GRAPH_WORLD_H_
