#include "kernels/cuda/gemm.h"

#include <algorithm>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::kernels {
namespace {

absl::Status CublasStatus(cublasStatus_t status, absl::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string text =
      absl::StrCat(what, ": ", cublasLtGetStatusString(status), " (", cublasLtGetStatusName(status), ")");
  if (status == CUBLAS_STATUS_ALLOC_FAILED) return absl::ResourceExhaustedError(text);
  if (status == CUBLAS_STATUS_NOT_INITIALIZED) return absl::UnavailableError(text);
  return absl::InternalError(text);
}

// Owners of cuBLASLt's descriptors.
template <class Handle, cublasStatus_t (*kDestroy)(Handle)>
struct Destroy {
  void operator()(Handle handle) const { kDestroy(handle); }
};
template <class Handle, cublasStatus_t (*kDestroy)(Handle)>
using Owner = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<Handle, kDestroy>>;
using Product = Owner<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owner<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t TypeOf(DType dtype) { return dtype == DType::kFloat32 ? CUDA_R_32F : CUDA_R_16BF; }

std::string Describe(const DeviceGemm& g) {
  return absl::StrCat("Gemm of m ", g.m, ", n ", g.n, ", k ", g.k, ", ", Name(g.a.dtype), " to ", Name(g.c.dtype));
}

cublasOperation_t OperationOf(Transpose transpose) { return transpose == Transpose::kYes ? CUBLAS_OP_T : CUBLAS_OP_N; }

// Column-major, c^T = b^T a^T, where each transpose is the row-major matrix as it lies; so is h, whose leading
// dimension is its row's length.
absl::StatusOr<Product> NewProduct(const DeviceGemm& g, cublasLtEpilogue_t epilogue, const void* h) {
  cublasLtMatmulDesc_t handle;
  REPRISE_RETURN_IF_ERROR(
      CublasStatus(cublasLtMatmulDescCreate(&handle, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate"));
  Product product(handle);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    return CublasStatus(cublasLtMatmulDescSetAttribute(handle, attribute, &value, sizeof(value)),
                        "cublasLtMatmulDescSetAttribute");
  };
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSA, OperationOf(g.transpose_b)));
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSB, OperationOf(g.transpose_a)));
  if (epilogue == CUBLASLT_EPILOGUE_DEFAULT) return product;
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue));
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, h));
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, g.n));
  return product;
}

// Of a dense row-major matrix, which is the dense column-major matrix of its transpose.
absl::StatusOr<Layout> NewLayout(DType dtype, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t handle;
  REPRISE_RETURN_IF_ERROR(
      CublasStatus(cublasLtMatrixLayoutCreate(&handle, TypeOf(dtype), static_cast<uint64_t>(columns),
                                              static_cast<uint64_t>(rows), columns),
                   "cublasLtMatrixLayoutCreate"));
  return Layout(handle);
}

// Bytes, a power of two up to 256.
uint32_t AlignmentOf(const void* address) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(address) | 256;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

absl::StatusOr<Preference> NewPreference(const DeviceGemm& g, int64_t workspace_bytes) {
  cublasLtMatmulPreference_t handle;
  REPRISE_RETURN_IF_ERROR(CublasStatus(cublasLtMatmulPreferenceCreate(&handle), "cublasLtMatmulPreferenceCreate"));
  Preference preference(handle);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return CublasStatus(cublasLtMatmulPreferenceSetAttribute(handle, attribute, &value, sizeof(value)),
                        "cublasLtMatmulPreferenceSetAttribute");
  };
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes)));
  // Partial sums of a split k are kept in float and added in order.
  REPRISE_RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)));
  // The first operand of cuBLASLt is b.
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(g.b.data)));
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(g.a.data)));
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(g.c.data)));
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(g.c.data)));
  return preference;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaGemm>> CudaGemm::New() {
  cublasLtHandle_t handle;
  REPRISE_RETURN_IF_ERROR(CublasStatus(cublasLtCreate(&handle), "cublasLtCreate"));
  return std::unique_ptr<CudaGemm>(new CudaGemm(handle));
}

CudaGemm::~CudaGemm() { cublasLtDestroy(handle_); }

absl::Status CudaGemm::Run(const DeviceGemm& g, void* workspace, int64_t workspace_bytes, cudaStream_t stream) {
  const bool add = g.c.mode == WriteMode::kAdd;
  if (g.m == 0 || g.n == 0 || (g.k == 0 && add)) return absl::OkStatus();
  if (g.k == 0) {
    const size_t bytes = static_cast<size_t>(g.m * g.n * SizeOf(g.c.dtype));
    return CudaStatus(cudaMemsetAsync(g.c.data, 0, bytes, stream), Describe(g));
  }
  REPRISE_ASSIGN_OR_RETURN(const bool done, Enqueue(g, {}, workspace, workspace_bytes, stream));
  if (done) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(Describe(g), ": cuBLASLt has no algorithm within ", workspace_bytes,
                                          " bytes of workspace; align the operands to 16 bytes"));
}

absl::StatusOr<bool> CudaGemm::RunWithGelu(const DeviceGemm& g, cublasLtEpilogue_t gelu, const void* h, void* workspace,
                                           int64_t workspace_bytes, cudaStream_t stream) {
  if (g.m == 0 || g.n == 0 || g.k == 0) return false;
  // What cuBLASLt asks of h.
  if (g.n % 8 != 0 || AlignmentOf(h) < 16) return false;
  return Enqueue(g, {gelu, h}, workspace, workspace_bytes, stream);
}

absl::StatusOr<bool> CudaGemm::Enqueue(const DeviceGemm& g, const Epilogue& epilogue, void* workspace,
                                       int64_t workspace_bytes, cudaStream_t stream) {
  const bool add = g.c.mode == WriteMode::kAdd;
  REPRISE_ASSIGN_OR_RETURN(const Product product, NewProduct(g, epilogue.kind, epilogue.h));
  const bool a_transposed = g.transpose_a == Transpose::kYes, b_transposed = g.transpose_b == Transpose::kYes;
  REPRISE_ASSIGN_OR_RETURN(const Layout a, NewLayout(g.a.dtype, a_transposed ? g.k : g.m, a_transposed ? g.m : g.k));
  REPRISE_ASSIGN_OR_RETURN(const Layout b, NewLayout(g.b.dtype, b_transposed ? g.n : g.k, b_transposed ? g.k : g.n));
  REPRISE_ASSIGN_OR_RETURN(const Layout c, NewLayout(g.c.dtype, g.m, g.n));

  const Key key = {g.m,
                   g.n,
                   g.k,
                   a_transposed,
                   b_transposed,
                   add,
                   static_cast<int64_t>(g.a.dtype),
                   static_cast<int64_t>(g.c.dtype),
                   AlignmentOf(g.a.data),
                   AlignmentOf(g.b.data),
                   AlignmentOf(g.c.data),
                   workspace_bytes,
                   epilogue.kind,
                   AlignmentOf(epilogue.h)};
  auto algorithm = algorithms_.find(key);
  if (algorithm == algorithms_.end()) {
    REPRISE_ASSIGN_OR_RETURN(const Preference preference, NewPreference(g, workspace_bytes));
    cublasLtMatmulHeuristicResult_t result = {};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, product.get(), b.get(), a.get(), c.get(), c.get(), preference.get(),
                                       /*requestedAlgoCount=*/1, &result, &count);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) {
      REPRISE_RETURN_IF_ERROR(CublasStatus(status, absl::StrCat(Describe(g), ": cublasLtMatmulAlgoGetHeuristic")));
    }
    const bool found = status == CUBLAS_STATUS_SUCCESS && count > 0 && result.state == CUBLAS_STATUS_SUCCESS;
    algorithm = algorithms_.emplace(key, found ? std::optional(result.algo) : std::nullopt).first;
  }
  if (!algorithm->second.has_value()) return false;
  const float alpha = 1.0f, beta = add ? 1.0f : 0.0f;
  REPRISE_RETURN_IF_ERROR(CublasStatus(
      cublasLtMatmul(handle_, product.get(), &alpha, g.b.data, b.get(), g.a.data, a.get(), &beta, g.c.data, c.get(),
                     g.c.data, c.get(), &*algorithm->second, workspace, static_cast<size_t>(workspace_bytes), stream),
      Describe(g)));
  return true;
}

}  // namespace reprise::kernels
