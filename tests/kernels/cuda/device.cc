#include "tests/kernels/cuda/device.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::kernels {
namespace {

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

}  // namespace

Device& Device::Get() {
  static Device* device = new Device();
  return *device;
}

Device::Device() {
  Require(CudaStatus(cudaStreamCreateWithFlags(&cuda_stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
  Require(CudaStatus(cudaMalloc(&workspace_, kCudaWorkspaceBytes), "cudaMalloc"));
  auto kernels = NewCudaKernels({.stream = cuda_stream_, .workspace = workspace_});
  Require(kernels.status());
  kernels_ = *std::move(kernels);
}

std::byte* Device::memory(size_t num_bytes) {
  if (num_bytes > memory_bytes_) {
    Require(CudaStatus(cudaFree(memory_), "cudaFree"));
    Require(CudaStatus(cudaMalloc(&memory_, num_bytes), "cudaMalloc"));
    memory_bytes_ = num_bytes;
  }
  return static_cast<std::byte*>(memory_);
}

absl::Status Device::Upload(void* to, const void* from, size_t num_bytes) {
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyHostToDevice, cuda_stream_), "cudaMemcpyAsync"));
  return CudaStatus(cudaStreamSynchronize(cuda_stream_), "cudaStreamSynchronize");
}

absl::Status Device::Poison() {
  return CudaStatus(cudaMemsetAsync(workspace_, 0xff, kCudaWorkspaceBytes, cuda_stream_), "cudaMemsetAsync");
}

absl::Status Device::Run(const std::function<absl::Status()>& enqueue) {
  REPRISE_RETURN_IF_ERROR(Poison());
  REPRISE_RETURN_IF_ERROR(enqueue());
  return CudaStatus(cudaStreamSynchronize(cuda_stream_), "cudaStreamSynchronize");
}

absl::Status Device::Replay(const std::function<absl::Status()>& enqueue, const std::function<void()>& before,
                            const std::function<void()>& after) {
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaStreamBeginCapture(cuda_stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture"));
  const absl::Status enqueued = enqueue();
  cudaGraph_t graph = nullptr;
  const absl::Status captured = CudaStatus(cudaStreamEndCapture(cuda_stream_, &graph), "cudaStreamEndCapture");
  REPRISE_RETURN_IF_ERROR(enqueued);
  REPRISE_RETURN_IF_ERROR(captured);
  cudaGraphExec_t executable = nullptr;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate"));
  absl::Status status;
  for (int replay = 0; replay < 2 && status.ok(); ++replay) {
    before();
    status = Run([&] { return CudaStatus(cudaGraphLaunch(executable, cuda_stream_), "cudaGraphLaunch"); });
    after();
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  return status;
}

}  // namespace reprise::kernels
