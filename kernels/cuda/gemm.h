// The matrix product, by cuBLASLt.
#ifndef REPRISE_KERNELS_CUDA_GEMM_H_
#define REPRISE_KERNELS_CUDA_GEMM_H_

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device_kernels.h"

namespace reprise::kernels {

// Keeps the algorithm of every product that it has run, so that each has one for good: the same when run eagerly and
// when captured, and passed explicitly, since cuBLASLt would choose anew in every call. Products are in real float
// (no TF32), and never summed in place by several blocks in the order in which they come.
class CudaGemm {
 public:
  static absl::StatusOr<std::unique_ptr<CudaGemm>> New();
  ~CudaGemm();
  CudaGemm(const CudaGemm&) = delete;
  CudaGemm& operator=(const CudaGemm&) = delete;

  // `workspace` is 256-byte aligned.
  absl::Status Run(const DeviceGemm& gemm, void* workspace, int64_t workspace_bytes, cudaStream_t stream);

 private:
  // All that a choice may depend on.
  using Key = std::array<int64_t, 12>;

  explicit CudaGemm(cublasLtHandle_t handle) : handle_(handle) {}

  cublasLtHandle_t handle_;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_CUDA_GEMM_H_
