// The matrix product, by cuBLASLt.
#ifndef REPRISE_KERNELS_CUDA_GEMM_H_
#define REPRISE_KERNELS_CUDA_GEMM_H_

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

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
  // A product that is assigned, with GELU in the same kernel; h [m,n] of the dtype of gemm.c.
  // CUBLASLT_EPILOGUE_GELU_AUX: h = the product, gemm.c = GeluTanh(h). CUBLASLT_EPILOGUE_DGELU: gemm.c = the product
  // times gelu'(h). False, with nothing enqueued, where cuBLASLt has no such kernel.
  absl::StatusOr<bool> RunWithGelu(const DeviceGemm& gemm, cublasLtEpilogue_t gelu, const void* h, void* workspace,
                                   int64_t workspace_bytes, cudaStream_t stream);

 private:
  // What is done to a product before it is written.
  struct Epilogue {
    cublasLtEpilogue_t kind = CUBLASLT_EPILOGUE_DEFAULT;
    const void* h = nullptr;
  };
  // All that a choice may depend on.
  using Key = std::array<int64_t, 14>;

  // False where cuBLASLt has no algorithm. m, n and k are positive.
  absl::StatusOr<bool> Enqueue(const DeviceGemm& gemm, const Epilogue& epilogue, void* workspace,
                               int64_t workspace_bytes, cudaStream_t stream);

  explicit CudaGemm(cublasLtHandle_t handle) : handle_(handle) {}

  cublasLtHandle_t handle_;
  std::map<Key, std::optional<cublasLtMatmulAlgo_t>> algorithms_;
};

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_CUDA_GEMM_H_
