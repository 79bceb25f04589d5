#include "graph/cuda/device_probe.h"

#include <array>
#include <numeric>

#include "graph/cuda/digest.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {

using kernels::CudaStatus;

absl::StatusOr<std::unique_ptr<DeviceProbe>> DeviceProbe::Create(CudaRank& rank, Lane lane) {
  std::unique_ptr<DeviceProbe> probe(new DeviceProbe(rank, lane));
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(probe->done_.receive(), cudaEventDisableTiming), "creating an event"));
  return probe;
}

absl::Status DeviceProbe::Wait() {
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(done_.get(), stream_), "recording an event"));
  return rank_.queue().WaitFor(done_.get());
}

absl::Status DeviceProbe::Copy(void* to, const void* from, int64_t num_bytes, cudaMemcpyKind kind) {
  REPRISE_RETURN_IF_ERROR(Wait());
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(num_bytes), kind, stream_),
                                     "copying what a command reads or writes"));
  return CudaStatus(cudaStreamSynchronize(stream_), "copying what a command reads or writes");
}

absl::Status DeviceProbe::Fill(void* to, uint8_t value, int64_t num_bytes) {
  return CudaStatus(cudaMemsetAsync(to, value, static_cast<size_t>(num_bytes), stream_), "filling device memory");
}

absl::Status DeviceProbe::Read(void* to_host, const void* from, int64_t num_bytes) {
  return Copy(to_host, from, num_bytes, cudaMemcpyDeviceToHost);
}

absl::Status DeviceProbe::Write(void* to, const void* from_host, int64_t num_bytes) {
  return Copy(to, from_host, num_bytes, cudaMemcpyHostToDevice);
}

absl::StatusOr<uint64_t> DeviceProbe::Digest(const void* from, int64_t num_bytes) {
  // Working memory that the lane's kernels use in turn.
  uint64_t* const parts = static_cast<uint64_t*>(rank_.lanes().workspace(lane_));
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(LaunchDigest(stream_, static_cast<const std::byte*>(from), num_bytes, parts), "finding a digest"));
  std::array<uint64_t, kDigestParts> read;
  REPRISE_RETURN_IF_ERROR(Read(read.data(), parts, sizeof(read)));
  return std::accumulate(read.begin(), read.end(), uint64_t{0});
}

}  // namespace reprise::internal
