// Simulated ranks in one process, without a GPU: the real schedules, waits and numbers.
#ifndef REPRISE_GRAPH_HOST_WORLD_H_
#define REPRISE_GRAPH_HOST_WORLD_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "reprise/graph/world.h"

namespace reprise {

// How a HostWorld replays. Results are the same bytes in every order, or the schedule lacks a wait.
//   kIssue: command after command, ranks side by side; the fast one. Compute functions run one rank after another, on
//     the calling thread; what they enqueue in a graph runs on several threads at once, as everything does in kThreads.
//   kAdversarial: any order that lanes and waits allow, drawn from the seed, in bursts. A command has a begin and an
//     end: what it assigns holds NaN (0xFF) in between, reads happen at the end, and other lanes run in between.
//     Transient memory is poisoned when the last use of its value ends.
//   kThreads: one thread per rank and lane; for a thread sanitizer.
enum class ReplayOrder : uint8_t { kIssue, kAdversarial, kThreads };

struct HostWorldOptions {
  int size = 1;  // ranks, 1 to 1024
  ReplayOrder order = ReplayOrder::kIssue;
  uint64_t seed = 0;  // of kAdversarial; each replay continues the sequence
  // The most that a replay uses, the calling one among them (each thread of kThreads for what it runs). The others are
  // of a pool that all worlds of the process share, which has one for each core and at most 16. 0: all there are. No
  // result depends on it.
  int threads = 0;
};

// InvalidArgument for a size, an order or a number of threads out of range. Memory is filled with 0xFF bytes (NaN) when
// allocated. Replay returns when it is done; if no command can run, FailedPrecondition lists each blocked command and
// what it waits for.
absl::StatusOr<std::shared_ptr<World>> CreateHostWorld(const HostWorldOptions& options);

}  // namespace reprise

#endif  // REPRISE_GRAPH_HOST_WORLD_H_
