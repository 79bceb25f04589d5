// A schedule as host functions, and what the executables of one world share.
#ifndef REPRISE_GRAPH_HOST_HOST_RECORDING_H_
#define REPRISE_GRAPH_HOST_HOST_RECORDING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "graph/bindings.h"
#include "graph/recorder.h"
#include "reprise/core/schedule.h"
#include "reprise/graph/host_world.h"

namespace reprise::internal {

// One rank's part of one command; null if it does nothing. The parts of a collective read every rank's sources and
// write their own rank's destination, so they may run side by side, between two moments at which all ranks are there.
using HostWork = std::function<absl::Status()>;

struct HostRecording {
  std::shared_ptr<const Bindings> bindings;
  int index = 0;  // of the schedule among the plan's
  Execution execution = Execution::kGraph;
  std::vector<std::vector<HostWork>> work = {};  // by command, then local rank
  // Set while CheckReplay runs: the work of compute functions then checks itself.
  std::shared_ptr<bool> checks = std::make_shared<bool>(false);

  int ranks() const { return static_cast<int>(bindings->ranks.size()); }
  const Schedule& schedule() const { return bindings->plan->schedules[index]; }
  int commands() const { return static_cast<int>(schedule().commands.size()); }
};

// Pseudo-random numbers, the same on every machine.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

class HostProfile;

// Shared by a HostWorld and its executables.
struct HostRuns {
  ReplayOrder order = ReplayOrder::kIssue;
  int threads = 0;  // HostWorldOptions::threads
  SplitMix64 random{0};
  std::shared_ptr<HostProfile> profile = nullptr;  // null while no replay is timed
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_HOST_HOST_RECORDING_H_
