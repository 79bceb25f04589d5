// The kernels on a CUDA stream.
#ifndef REPRISE_KERNELS_CUDA_CUDA_KERNELS_H_
#define REPRISE_KERNELS_CUDA_CUDA_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/device_kernels.h"

namespace reprise::kernels {

// What NVIDIA recommends for GEMMs on Hopper, and more than the other kernels need: column sums, losses and
// norms take 4 MiB whatever their shape; RmsNormBackward 4 MiB and 4 bytes a row; EmbeddingBackward 8 bytes an id;
// CausalAttentionBackward 4 bytes a row of one head, and works on as many heads at a time as fit.
inline constexpr int64_t kCudaWorkspaceBytes = int64_t{32} << 20;
inline constexpr int64_t kMinCudaWorkspaceBytes = int64_t{8} << 20;

struct CudaKernelsOptions {
  cudaStream_t stream = nullptr;
  // Device memory of the caller's, 256-byte aligned. The kernels of this stream use it in turn; so nothing else may
  // while any of them, or a graph that captured one, can run.
  void* workspace = nullptr;
  int64_t workspace_bytes = kCudaWorkspaceBytes;
};

// The kernels of a stream, and which of several equal ones are used.
class CudaKernels : public DeviceKernels {
 public:
  // Measures for the GEMMs that ran and were not chosen for; see gemm_tuner.h. Waits.
  virtual absl::Status Tune() = 0;
  // What Tune found, or was given to Choose, as text by text, for the same GPU and version of cuBLASLt.
  virtual std::map<std::string, std::string> choices() const = 0;
  // InvalidArgument, and nothing chosen, for other text and for kernels that cannot run here.
  virtual absl::Status Choose(const std::map<std::string, std::string>& choices) = 0;
};

// ResourceExhausted, with the numbers and the widest heads that do, if attention on heads of `head_width` elements
// needs more shared memory than a block of a device has. `needed` says how much heads of a width need.
absl::Status CheckAttentionMemory(absl::string_view kernel, int64_t head_width, int64_t (*needed)(int64_t head_width),
                                  int64_t available);

// The library that GEMMs run on, as its cublasLtGetVersion says.
size_t CublasLtVersion();

// Kernels for the current device, which must stay current while they are used. A kernel that needs more workspace than
// there is, or more shared memory than the device has, returns ResourceExhausted with both numbers. Unavailable without
// a device.
absl::StatusOr<std::unique_ptr<CudaKernels>> NewCudaKernels(const CudaKernelsOptions& options);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_CUDA_CUDA_KERNELS_H_
