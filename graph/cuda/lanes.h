// Where a rank enqueues on its device: a stream for each lane, with the kernels and working memory of that lane, and
// the launch stream.
#ifndef REPRISE_GRAPH_CUDA_LANES_H_
#define REPRISE_GRAPH_CUDA_LANES_H_

#include <cuda_runtime_api.h>

#include <array>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/cuda/handles.h"
#include "kernels/cuda/cuda_kernels.h"
#include "reprise/core/schedule.h"

namespace reprise::internal {

// Made and destroyed with its device current: see caller_state.h.
class Lanes {
 public:
  // `launch_stream` is the caller's and outlives this; null for one of its own.
  static absl::StatusOr<std::unique_ptr<Lanes>> Create(cudaStream_t launch_stream);
  ~Lanes();

  // Every launch and copy goes here, but what is staged.
  cudaStream_t launch_stream() const { return launch_stream_; }
  // Where commands of a lane are enqueued: blocking streams, so that a call on the legacy stream while one is captured
  // is an error and not lost.
  cudaStream_t lane_stream(Lane lane) const { return At(lane).stream.get(); }
  Stream stream(Lane lane) const { return Stream(lane_stream(lane), At(lane).kernels.get()); }
  // Working memory of the lane's kernels, which use it in turn.
  void* workspace(Lane lane) const { return At(lane).workspace; }
  // Those that compute functions use.
  kernels::CudaKernels& compute_kernels() const { return *At(Lane::kCompute).kernels; }

  // Leaves all to the device, which may still use it.
  void Abandon();

 private:
  struct Parts {
    StreamHandle stream;
    void* workspace = nullptr;
    std::unique_ptr<kernels::CudaKernels> kernels;
  };

  Lanes() = default;
  absl::Status Open(Lane lane, int priority);
  const Parts& At(Lane lane) const { return parts_[static_cast<size_t>(lane)]; }

  StreamHandle own_stream_;
  cudaStream_t launch_stream_ = nullptr;
  std::array<Parts, kNumLanes> parts_;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_LANES_H_
