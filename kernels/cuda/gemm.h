// GEMM, by cuBLASLt.
#ifndef REPRISE_KERNELS_CUDA_GEMM_H_
#define REPRISE_KERNELS_CUDA_GEMM_H_

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/device_kernels.h"

namespace reprise::kernels {

// All that the choice of a product's kernel may depend on.
struct GemmKey {
  static constexpr int64_t kMaxAlignment = 256;  // bytes; that of what is not there, too

  int64_t m = 0, n = 0, k = 0;
  int64_t transpose_a = 0, transpose_b = 0;  // 0 or 1, as the others without a unit
  int64_t add = 0;
  int64_t in = 0, out = 0;  // DType
  int64_t a_alignment = 0, b_alignment = 0, c_alignment = 0;
  int64_t workspace_bytes = 0;
  int64_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;  // cublasLtEpilogue_t
  int64_t h_alignment = 0;

  friend auto operator<=>(const GemmKey&, const GemmKey&) = default;
};

using GemmAlgorithm = cublasLtMatmulAlgo_t;

// Keeps the choice for every product that it has run, so that each has one until another is chosen: the same when run
// eagerly and when captured, and passed explicitly, since cuBLASLt would choose anew in every call. Products are in
// real float (no TF32), and never summed in place by several blocks in the order in which they come.
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
  // times gelu'(h). False, with nothing enqueued, where cuBLASLt has no such kernel, or two are quicker.
  absl::StatusOr<bool> RunWithGelu(const DeviceGemm& gemm, cublasLtEpilogue_t gelu, const void* h, void* workspace,
                                   int64_t workspace_bytes, cudaStream_t stream);

  // ---- choices ----

  // Products that ran on cuBLASLt's first choice.
  const std::set<GemmKey>& first_choices() const { return first_choices_; }
  // Of all that ran or were chosen for; nothing: that product has no kernel.
  const std::map<GemmKey, std::optional<GemmAlgorithm>>& choices() const { return choices_; }
  // `choice` is a proposal, or CheckChoice accepted it.
  void Choose(const GemmKey& key, const std::optional<GemmAlgorithm>& choice);
  // InvalidArgument unless cuBLASLt can run the product so on this device, within the key's workspace and in a fixed
  // order of additions.
  absl::Status CheckChoice(const GemmKey& key, const GemmAlgorithm& algorithm) const;
  // cuBLASLt's proposals, the one it takes to be quickest first.
  absl::StatusOr<std::vector<GemmAlgorithm>> Propose(const GemmKey& key, int at_most) const;
  // Runs the product by this algorithm.
  struct Operands {
    const void* a = nullptr;
    const void* b = nullptr;
    void* c = nullptr;
    const void* h = nullptr;
    void* workspace = nullptr;
  };
  absl::Status RunAs(const GemmKey& key, const GemmAlgorithm& algorithm, const Operands& operands,
                     cudaStream_t stream) const;

 private:
  // False where there is no kernel for the product.
  absl::StatusOr<bool> Enqueue(const DeviceGemm& gemm, cublasLtEpilogue_t epilogue, const void* h, void* workspace,
                               int64_t workspace_bytes, cudaStream_t stream);

  explicit CudaGemm(cublasLtHandle_t handle) : handle_(handle) {}

  cublasLtHandle_t handle_;
  std::map<GemmKey, std::optional<GemmAlgorithm>> choices_;
  std::set<GemmKey> first_choices_;
};

// Text of a key and of a choice, and back; false for what is no such text. Algorithms are of one version of cuBLASLt.
std::string ToText(const GemmKey& key);
std::string ToText(const std::optional<GemmAlgorithm>& choice);
bool FromText(absl::string_view text, GemmKey& key);
bool FromText(absl::string_view text, std::optional<GemmAlgorithm>& choice);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_CUDA_GEMM_H_
