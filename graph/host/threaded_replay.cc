// Waits spin on one flag per rank and command, so that a thread sanitizer sees exactly the schedule's order: a shared
// lock or condition variable would order commands that no wait orders, and hide their races.
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/command_error.h"
#include "graph/host/host_executable.h"
#include "kernels/parallel.h"

namespace reprise::internal {
namespace {

class ThreadedReplay {
 public:
  ThreadedReplay(const HostRecording& recording, ReplayTimes& times)
      : recording_(recording),
        times_(times),
        complete_(new std::atomic<bool>[recording.ranks() * recording.commands()]()),
        arrived_(new std::atomic<int>[recording.commands()]()),
        left_(new std::atomic<int>[recording.commands()]()),
        errors_(recording.ranks()) {
    for (int c = 0; c < recording.commands(); ++c) lanes_[LaneOf(c)].push_back(c);
  }

  absl::Status Run() {
    std::vector<std::thread> threads;
    absl::Status status;
    try {
      for (int rank = 0; rank < recording_.ranks(); ++rank) {
        for (int lane = 0; lane < kNumLanes; ++lane) {
          if (!lanes_[lane].empty()) threads.emplace_back([this, rank, lane] { RunLane(rank, lane); });
        }
      }
    } catch (const std::system_error& error) {
      failed_.store(true, std::memory_order_relaxed);
      status = absl::ResourceExhaustedError(absl::StrCat("only ", threads.size(), " threads could be started (",
                                                         error.what(), "); use fewer ranks or another ReplayOrder"));
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::array<absl::Status, kNumLanes>& rank : errors_) {
      for (const absl::Status& error : rank) {
        if (status.ok()) status = error;
      }
    }
    return status;
  }

 private:
  int LaneOf(int command) const { return static_cast<int>(recording_.schedule().commands[command].lane); }
  std::atomic<bool>& Complete(int rank, int command) { return complete_[rank * recording_.commands() + command]; }

  // False if the replay failed meanwhile.
  template <class Predicate>
  bool Await(const Predicate& predicate) const {
    for (int spin = 0; !predicate(); ++spin) {
      if (failed_.load(std::memory_order_relaxed)) return false;
      if (spin < 64) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
    return true;
  }
  // All ranks are there.
  bool Meet(std::atomic<int>& count) const {
    count.fetch_add(1, std::memory_order_acq_rel);
    return Await([&] { return count.load(std::memory_order_acquire) == recording_.ranks(); });
  }

  void RunLane(int rank, int lane) {
    const kernels::ThreadLimit limit(threads_);
    for (const int c : lanes_[lane]) {
      if (!RunCommand(rank, c)) return;
    }
  }

  bool RunCommand(int rank, int c) {
    const ScheduledCommand& command = recording_.schedule().commands[c];
    for (const Wait& wait : command.waits) {
      const std::atomic<bool>& complete = Complete(rank, wait.command.value());
      if (!Await([&] { return complete.load(std::memory_order_acquire); })) return false;
    }
    times_.Begin(rank, c);
    const bool collective = IsCollective(command.command);
    if (collective && !Meet(arrived_[c])) return false;
    if (const HostWork& work = recording_.work[c][rank]; work != nullptr) {
      const absl::Status status = AtCommand(*recording_.bindings->plan, CommandId(c), command.command, work());
      if (!status.ok()) {
        errors_[rank][LaneOf(c)] = status;
        failed_.store(true, std::memory_order_relaxed);
        return false;
      }
    }
    if (collective && !Meet(left_[c])) return false;
    times_.End(rank, c);
    Complete(rank, c).store(true, std::memory_order_release);
    return true;
  }

  const HostRecording& recording_;
  const int threads_ = kernels::ThreadLimit::Current();
  ReplayTimes& times_;  // each thread tells of its own commands
  std::array<std::vector<int>, kNumLanes> lanes_;
  std::unique_ptr<std::atomic<bool>[]> complete_;            // by rank and command
  std::unique_ptr<std::atomic<int>[]> arrived_, left_;       // by command: ranks that have begun, and done, their part
  std::vector<std::array<absl::Status, kNumLanes>> errors_;  // by rank and lane; each thread writes its own
  std::atomic<bool> failed_ = false;
};

}  // namespace

absl::Status ReplayOnThreads(const HostRecording& recording, ReplayTimes& times) {
  return ThreadedReplay(recording, times).Run();
}

}  // namespace reprise::internal
