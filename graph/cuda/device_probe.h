// How checks of compute functions reach device memory, in order with a stream.
#ifndef REPRISE_GRAPH_CUDA_DEVICE_PROBE_H_
#define REPRISE_GRAPH_CUDA_DEVICE_PROBE_H_

#include <memory>

#include "graph/cuda/cuda_rank.h"
#include "graph/memory_probe.h"

namespace reprise::internal {

// Waits look at the other ranks, see LaunchQueue::WaitFor. Allocates nothing, because that may wait for what the device
// runs, and nothing would look at the other ranks meanwhile.
class DeviceProbe : public MemoryProbe {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceProbe>> Create(CudaRank& rank, Lane lane);

  absl::Status Fill(void* to, uint8_t value, int64_t num_bytes) override;
  absl::Status Read(void* to_host, const void* from, int64_t num_bytes) override;
  absl::Status Write(void* to, const void* from_host, int64_t num_bytes) override;
  absl::StatusOr<uint64_t> Digest(const void* from, int64_t num_bytes) override;
  // Until all that was enqueued on the lane is done.
  absl::Status Wait();

 private:
  DeviceProbe(CudaRank& rank, Lane lane) : rank_(rank), lane_(lane), stream_(rank.lanes().lane_stream(lane)) {}
  absl::Status Copy(void* to, const void* from, int64_t num_bytes, cudaMemcpyKind kind);

  CudaRank& rank_;
  const Lane lane_;
  const cudaStream_t stream_;
  EventHandle done_;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_DEVICE_PROBE_H_
