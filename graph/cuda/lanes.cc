#include "graph/cuda/lanes.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

using kernels::CudaStatus;

// GEMMs run on the compute lane alone; what else needs working memory are reductions of a few rows.
int64_t WorkspaceBytes(Lane lane) {
  return lane == Lane::kCompute ? kernels::kCudaWorkspaceBytes : kernels::kMinCudaWorkspaceBytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Lanes>> Lanes::Create(cudaStream_t launch_stream) {
  std::unique_ptr<Lanes> lanes(new Lanes);
  lanes->launch_stream_ = launch_stream;
  if (launch_stream == nullptr) {
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(lanes->own_stream_.receive(), cudaStreamNonBlocking),
                                       "creating the launch stream"));
    lanes->launch_stream_ = lanes->own_stream_.get();
  }
  int least = 0, greatest = 0;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities"));
  for (int l = 0; l < kNumLanes; ++l) {
    const Lane lane = static_cast<Lane>(l);
    REPRISE_RETURN_IF_ERROR(lanes->Open(lane, lane == Lane::kCompute ? least : greatest));
  }
  return lanes;
}

absl::Status Lanes::Open(Lane lane, int priority) {
  Parts& parts = parts_[static_cast<size_t>(lane)];
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithPriority(parts.stream.receive(), cudaStreamDefault, priority),
                                     absl::StrCat("creating the stream of lane ", Name(lane))));
  const int64_t num_bytes = WorkspaceBytes(lane);
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&parts.workspace, num_bytes),
                                     absl::StrCat("taking ", num_bytes, " bytes of working memory")));
  REPRISE_ASSIGN_OR_RETURN(
      parts.kernels, kernels::NewCudaKernels(
                         {.stream = parts.stream.get(), .workspace = parts.workspace, .workspace_bytes = num_bytes}));
  return absl::OkStatus();
}

Lanes::~Lanes() {
  for (Parts& parts : parts_) {
    parts.kernels = nullptr;
    parts.stream = StreamHandle();
    if (parts.workspace != nullptr) cudaFree(parts.workspace);
  }
}

void Lanes::Abandon() {
  for (Parts& parts : parts_) {
    parts.stream.Abandon();
    parts.workspace = nullptr;
    static_cast<void>(parts.kernels.release());
  }
  own_stream_.Abandon();
}

}  // namespace reprise::internal
