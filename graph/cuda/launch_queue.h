// What a rank launched on its device: how much is outstanding, waits that look at the other ranks and at the clock, and
// what happens when one of them fails.
#ifndef REPRISE_GRAPH_CUDA_LAUNCH_QUEUE_H_
#define REPRISE_GRAPH_CUDA_LAUNCH_QUEUE_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "graph/comm/shared_word.h"
#include "graph/cuda/communicators.h"
#include "graph/cuda/handles.h"
#include "graph/cuda/rank_place.h"

namespace reprise::internal {

class LaunchQueue {
 public:
  // With the device current, as for the end. All that is given outlives this.
  static absl::StatusOr<std::unique_ptr<LaunchQueue>> Create(const RankPlace& place, cudaStream_t launch_stream,
                                                             Communicators& communicators);

  // FailedPrecondition while the caller captures the launch stream; the first failure of a wait.
  absl::Status CheckUsable() const;
  // Around each launch of a schedule. Admit waits while many are outstanding, so that no launch blocks in the driver,
  // where nothing looks at the clock.
  absl::Status Admit();
  absl::Status Launched(bool is_graph);
  // Waits until all that was launched is done, launch by launch, or what came before an event on the launch stream. If
  // a rank goes away, or one launch takes longer than the deadline, collectives are aborted, and this
  // error is final.
  absl::Status Wait();
  absl::Status WaitFor(cudaEvent_t event);
  // NCCL allows no eager collective while a graph that uses its communicator is outstanding, see graph/README.md.
  absl::Status WaitForGraphs() { return graph_launched_ ? Wait() : absl::OkStatus(); }
  // After a wait that succeeded, or a look at memory that the host sees: may what is there be used? The error of a rank
  // that gave up, which is then this one's, too: its device goes on with bytes that mean nothing, and makes those of
  // others go on. Wait does this last.
  absl::Status CheckResults();
  // For destructors: waits as long as that makes sense. False if the device may still use what was launched: its memory
  // must then be left to it.
  bool Drain();

  // Copies here run beside the last launch. The next launch and every wait come after them.
  cudaStream_t staging_stream() const { return staging_stream_.get(); }
  // What is enqueued there from now on comes after all launches but the last.
  absl::Status BeginStaging();

  // A word that all ranks share and that says, from the time on before which nothing was made to go on, which rank gave
  // up: its number + 1. Without one, of ranks on several hosts, CheckResults looks for messages, which such bytes may
  // overtake.
  void SetGaveUpWord(std::unique_ptr<SharedWord> word) { gave_up_word_ = std::move(word); }
  bool has_gave_up_word() const { return gave_up_word_ != nullptr; }

  // The first failure of a wait.
  const absl::Status& failed() const { return failed_; }
  // Then the device may not have come to an end.
  bool lost() const { return lost_; }
  // Leaves all that the device may still use to it.
  void Abandon();

 private:
  LaunchQueue(const RankPlace& place, cudaStream_t launch_stream, Communicators& communicators)
      : place_(place), launch_stream_(launch_stream), communicators_(communicators) {}
  void Fail(const absl::Status& status);
  // Does the device come to the end of what was launched, with copies that wait for other ranks made to go on?
  bool Ends(absl::Duration within);
  // What the launch stream runs from now on comes after what was staged.
  absl::Status EndStaging();

  const RankPlace& place_;
  const cudaStream_t launch_stream_;
  Communicators& communicators_;
  StreamHandle staging_stream_;
  EventHandle staged_;
  bool is_staging_ = false;
  EventHandle waited_for_;
  // Launches that may be outstanding: enough that the device never waits for the host, and far fewer than the about
  // thousand that the driver takes before it blocks.
  static constexpr int64_t kMaxOutstanding = 32;
  std::array<EventHandle, kMaxOutstanding> ends_;
  int64_t launched_ = 0, finished_ = 0;
  bool graph_launched_ = false;
  std::unique_ptr<SharedWord> gave_up_word_;
  absl::Status failed_;
  bool lost_ = false;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_LAUNCH_QUEUE_H_
