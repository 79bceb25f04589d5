// When the kernels and copies of replays ran, by CUPTI's activity records, mapped back to commands.
#ifndef REPRISE_GRAPH_CUDA_DEVICE_PROFILE_H_
#define REPRISE_GRAPH_CUDA_DEVICE_PROFILE_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/cuda/captured_graph.h"
#include "graph/cuda/handles.h"
#include "reprise/core/plan.h"
#include "reprise/core/timeline.h"

namespace reprise::internal {

// One at a time per process. The thread of all calls, and of the launches between them, is the same.
class DeviceProfile {
 public:
  virtual ~DeviceProfile() = default;

  // Tells the profiles of a process apart; not negative.
  virtual int64_t number() const = 0;
  // An executable of the graph, whose nodes records can be mapped back to: they name the copies that instantiation
  // makes, which only this call sees.
  virtual absl::StatusOr<GraphExecHandle> Instantiate(cudaGraph_t graph, const NodeCommands& commands) = 0;
  // What this thread launches from now on belongs to the next replay, of this schedule: to the command, or to a graph's
  // nodes if it is invalid. EndLaunch ends that.
  virtual void BeginReplay(int schedule) = 0;
  virtual void BeginLaunch(CommandId command) = 0;
  virtual void EndLaunch() = 0;
  // Once, after everything launched is done. Microseconds from an origin on the clock that the processes of a host
  // share.
  virtual absl::StatusOr<Timeline> Stop(int64_t& origin_ns) = 0;
};

// Unavailable without CUPTI, or while another tool uses it; FailedPrecondition while another profile of this process is
// open.
absl::StatusOr<std::unique_ptr<DeviceProfile>> StartDeviceProfile(int rank);

// The same by these functions, which outlive it; only where this is built with CUPTI's header.
struct CuptiApi;
absl::StatusOr<std::unique_ptr<DeviceProfile>> StartDeviceProfile(int rank, const CuptiApi& cupti);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_DEVICE_PROFILE_H_
