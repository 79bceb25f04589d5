// Enqueues the commands of one schedule on the lanes of a rank, each after what it waits for. Under capture this makes
// a graph, otherwise the device runs it: capture and eager share all of it.
#ifndef REPRISE_GRAPH_CUDA_LANE_WALK_H_
#define REPRISE_GRAPH_CUDA_LANE_WALK_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "graph/bindings.h"
#include "graph/cuda/cuda_rank.h"
#include "reprise/core/schedule.h"

namespace reprise::internal {

class LaneWalk {
 public:
  LaneWalk(std::shared_ptr<CudaRank> rank, std::shared_ptr<const Bindings> bindings)
      : rank_(std::move(rank)), bindings_(std::move(bindings)) {}

  // Before the first command of the schedule.
  absl::Status Prepare(const Schedule& schedule);
  absl::Status Enqueue(CommandId id, const ScheduledCommand& command) const;

  CudaRank& rank() const { return *rank_; }
  const Bindings& bindings() const { return *bindings_; }

 private:
  absl::Status Launch(const ScheduledCommand& command) const;
  // Captures the command's work and launches that; without a capture where that breaks, which recording will say.
  absl::Status LaunchCaptured(CommandId id, const ScheduledCommand& command) const;
  absl::Status CheckDeviceWrites(CommandId id, const ScheduledCommand& command) const;
  absl::Status FindOnDevice(CommandId id, const ScheduledCommand& command) const;

  const std::shared_ptr<CudaRank> rank_;
  const std::shared_ptr<const Bindings> bindings_;
  std::vector<EventHandle> done_;  // by command; none where no command of another lane waits for it
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_LANE_WALK_H_
