#include "kernels/cuda/gemm.h"

#include <cstddef>
#include <iterator>
#include <type_traits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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

std::string Describe(const GemmKey& key) {
  return absl::StrCat("Gemm of m ", key.m, ", n ", key.n, ", k ", key.k, ", ", Name(static_cast<DType>(key.in)), " to ",
                      Name(static_cast<DType>(key.out)));
}

cublasOperation_t OperationOf(int64_t transpose) { return transpose != 0 ? CUBLAS_OP_T : CUBLAS_OP_N; }

// Column-major, c^T = b^T a^T, where each transpose is the row-major matrix as it lies; so is h, whose leading
// dimension is its row's length.
absl::StatusOr<Product> NewProduct(const GemmKey& key, const void* h) {
  cublasLtMatmulDesc_t handle;
  REPRISE_RETURN_IF_ERROR(
      CublasStatus(cublasLtMatmulDescCreate(&handle, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate"));
  Product product(handle);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    return CublasStatus(cublasLtMatmulDescSetAttribute(handle, attribute, &value, sizeof(value)),
                        "cublasLtMatmulDescSetAttribute");
  };
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSA, OperationOf(key.transpose_b)));
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSB, OperationOf(key.transpose_a)));
  if (key.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return product;
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<cublasLtEpilogue_t>(key.epilogue)));
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, h));
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.n));
  return product;
}

// Of a dense row-major matrix, which is the dense column-major matrix of its transpose.
absl::StatusOr<Layout> NewLayout(int64_t dtype, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t handle;
  REPRISE_RETURN_IF_ERROR(
      CublasStatus(cublasLtMatrixLayoutCreate(&handle, TypeOf(static_cast<DType>(dtype)),
                                              static_cast<uint64_t>(columns), static_cast<uint64_t>(rows), columns),
                   "cublasLtMatrixLayoutCreate"));
  return Layout(handle);
}

struct Layouts {
  Layout a, b, c;
};
absl::StatusOr<Layouts> NewLayouts(const GemmKey& key) {
  const auto layout = [](int64_t dtype, int64_t transpose, int64_t rows, int64_t columns) {
    return NewLayout(dtype, transpose != 0 ? columns : rows, transpose != 0 ? rows : columns);
  };
  Layouts layouts;
  REPRISE_ASSIGN_OR_RETURN(layouts.a, layout(key.in, key.transpose_a, key.m, key.k));
  REPRISE_ASSIGN_OR_RETURN(layouts.b, layout(key.in, key.transpose_b, key.k, key.n));
  REPRISE_ASSIGN_OR_RETURN(layouts.c, layout(key.out, 0, key.m, key.n));
  return layouts;
}

// A power of two.
int64_t AlignmentOf(const void* address) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(address) | GemmKey::kMaxAlignment;
  return static_cast<int64_t>(bits & (~bits + 1));
}

bool IsAlignment(int64_t bytes) { return bytes > 0 && bytes <= GemmKey::kMaxAlignment && (bytes & (bytes - 1)) == 0; }

// Could a call have made it?
bool IsProduct(const GemmKey& key) {
  const auto is_float = [](int64_t dtype) {
    return dtype == static_cast<int64_t>(DType::kFloat32) || dtype == static_cast<int64_t>(DType::kBFloat16);
  };
  const auto is_bit = [](int64_t number) { return number == 0 || number == 1; };
  return key.m > 0 && key.n > 0 && key.k > 0 && is_bit(key.transpose_a) && is_bit(key.transpose_b) && is_bit(key.add) &&
         is_float(key.in) && is_float(key.out) && IsAlignment(key.a_alignment) && IsAlignment(key.b_alignment) &&
         IsAlignment(key.c_alignment) && IsAlignment(key.h_alignment) && key.workspace_bytes >= 0;
}

// An address that is so aligned, and that nothing reads.
const void* AlignedAs(int64_t alignment) {
  alignas(GemmKey::kMaxAlignment) static constexpr std::byte kAligned[2 * GemmKey::kMaxAlignment] = {};
  return kAligned + alignment;
}

// Partial sums of a split k are kept in float and added in order.
constexpr uint32_t kReductionSchemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

absl::StatusOr<Preference> NewPreference(const GemmKey& key) {
  cublasLtMatmulPreference_t handle;
  REPRISE_RETURN_IF_ERROR(CublasStatus(cublasLtMatmulPreferenceCreate(&handle), "cublasLtMatmulPreferenceCreate"));
  Preference preference(handle);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return CublasStatus(cublasLtMatmulPreferenceSetAttribute(handle, attribute, &value, sizeof(value)),
                        "cublasLtMatmulPreferenceSetAttribute");
  };
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(key.workspace_bytes)));
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kReductionSchemes));
  const auto set_alignment = [&](cublasLtMatmulPreferenceAttributes_t attribute, int64_t alignment) {
    return set(attribute, static_cast<uint32_t>(alignment));
  };
  // The first operand of cuBLASLt is b.
  REPRISE_RETURN_IF_ERROR(set_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.b_alignment));
  REPRISE_RETURN_IF_ERROR(set_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a_alignment));
  REPRISE_RETURN_IF_ERROR(set_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.c_alignment));
  REPRISE_RETURN_IF_ERROR(set_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.c_alignment));
  return preference;
}

GemmKey KeyOf(const DeviceGemm& g, cublasLtEpilogue_t epilogue, const void* h, int64_t workspace_bytes) {
  return {.m = g.m,
          .n = g.n,
          .k = g.k,
          .transpose_a = g.transpose_a == Transpose::kYes,
          .transpose_b = g.transpose_b == Transpose::kYes,
          .add = g.c.mode == WriteMode::kAdd,
          .in = static_cast<int64_t>(g.a.dtype),
          .out = static_cast<int64_t>(g.c.dtype),
          .a_alignment = AlignmentOf(g.a.data),
          .b_alignment = AlignmentOf(g.b.data),
          .c_alignment = AlignmentOf(g.c.data),
          .workspace_bytes = workspace_bytes,
          .epilogue = epilogue,
          .h_alignment = AlignmentOf(h)};
}

// The numbers of a key, in the order of its text.
template <class Key, class Body>
void ForEachNumber(Key& key, const Body& body) {
  for (auto* number :
       {&key.m, &key.n, &key.k, &key.transpose_a, &key.transpose_b, &key.add, &key.in, &key.out, &key.a_alignment,
        &key.b_alignment, &key.c_alignment, &key.workspace_bytes, &key.epilogue, &key.h_alignment}) {
    body(*number);
  }
}

constexpr absl::string_view kNoKernel = "none";

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
  const auto describe = [&] { return Describe(KeyOf(g, CUBLASLT_EPILOGUE_DEFAULT, nullptr, workspace_bytes)); };
  if (g.k == 0) {
    const size_t bytes = static_cast<size_t>(g.m * g.n * SizeOf(g.c.dtype));
    return CudaStatus(cudaMemsetAsync(g.c.data, 0, bytes, stream), describe());
  }
  REPRISE_ASSIGN_OR_RETURN(const bool done,
                           Enqueue(g, CUBLASLT_EPILOGUE_DEFAULT, /*h=*/nullptr, workspace, workspace_bytes, stream));
  if (done) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(describe(), ": cuBLASLt has no algorithm within ", workspace_bytes,
                                          " bytes of workspace; align the operands to 16 bytes"));
}

absl::StatusOr<bool> CudaGemm::RunWithGelu(const DeviceGemm& g, cublasLtEpilogue_t gelu, const void* h, void* workspace,
                                           int64_t workspace_bytes, cudaStream_t stream) {
  if (g.m == 0 || g.n == 0 || g.k == 0) return false;
  // What cuBLASLt asks of h.
  if (g.n % 8 != 0 || AlignmentOf(h) < 16) return false;
  return Enqueue(g, gelu, h, workspace, workspace_bytes, stream);
}

absl::StatusOr<bool> CudaGemm::Enqueue(const DeviceGemm& g, cublasLtEpilogue_t epilogue, const void* h, void* workspace,
                                       int64_t workspace_bytes, cudaStream_t stream) {
  const GemmKey key = KeyOf(g, epilogue, h, workspace_bytes);
  auto choice = choices_.find(key);
  if (choice == choices_.end()) {
    REPRISE_ASSIGN_OR_RETURN(const std::vector<GemmAlgorithm> proposals, Propose(key, 1));
    const std::optional<GemmAlgorithm> first = proposals.empty() ? std::nullopt : std::optional(proposals[0]);
    choice = choices_.emplace(key, first).first;
    if (first.has_value()) first_choices_.insert(key);
  }
  if (!choice->second.has_value()) return false;
  REPRISE_RETURN_IF_ERROR(RunAs(key, *choice->second,
                                {.a = g.a.data, .b = g.b.data, .c = g.c.data, .h = h, .workspace = workspace}, stream));
  return true;
}

void CudaGemm::Choose(const GemmKey& key, const std::optional<GemmAlgorithm>& choice) {
  choices_[key] = choice;
  first_choices_.erase(key);
}

absl::Status CudaGemm::CheckChoice(const GemmKey& key, const GemmAlgorithm& algorithm) const {
  const auto refuse = [&](absl::string_view why) { return absl::InvalidArgumentError(std::string(why)); };
  if (!IsProduct(key)) return refuse("the numbers are of no GEMM");
  REPRISE_ASSIGN_OR_RETURN(const Product product, NewProduct(key, AlignedAs(key.h_alignment)));
  REPRISE_ASSIGN_OR_RETURN(const Layouts layouts, NewLayouts(key));
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle_, product.get(), layouts.b.get(), layouts.a.get(),
                                                        layouts.c.get(), layouts.c.get(), &algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS) {
    return refuse(absl::StrCat("cublasLtMatmulAlgoCheck: ", cublasLtGetStatusString(status)));
  }
  if (result.workspaceSize > static_cast<size_t>(key.workspace_bytes)) {
    return refuse(absl::StrCat("it needs ", result.workspaceSize, " bytes of workspace of ", key.workspace_bytes));
  }
  const auto read = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto& value) {
    size_t written = 0;
    return cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), &written);
  };
  int32_t parts = 0;  // of k
  uint32_t scheme = 0;
  if (read(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, parts) != CUBLAS_STATUS_SUCCESS ||
      read(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, scheme) != CUBLAS_STATUS_SUCCESS) {
    return refuse("it does not say how it adds partial sums");
  }
  const bool splits = parts != 0 && parts != 1;
  if (splits && (scheme & ~kReductionSchemes) != 0) {
    return refuse(absl::StrCat("it adds partial sums by scheme ", scheme, ", whose result may differ between runs"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<GemmAlgorithm>> CudaGemm::Propose(const GemmKey& key, int at_most) const {
  REPRISE_ASSIGN_OR_RETURN(const Product product, NewProduct(key, AlignedAs(key.h_alignment)));
  REPRISE_ASSIGN_OR_RETURN(const Layouts layouts, NewLayouts(key));
  REPRISE_ASSIGN_OR_RETURN(const Preference preference, NewPreference(key));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(at_most));
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, product.get(), layouts.b.get(), layouts.a.get(), layouts.c.get(),
                                     layouts.c.get(), preference.get(), at_most, results.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return std::vector<GemmAlgorithm>();
  REPRISE_RETURN_IF_ERROR(CublasStatus(status, absl::StrCat(Describe(key), ": cublasLtMatmulAlgoGetHeuristic")));
  std::vector<GemmAlgorithm> proposals;
  for (int i = 0; i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) proposals.push_back(result.algo);
  }
  return proposals;
}

absl::Status CudaGemm::RunAs(const GemmKey& key, const GemmAlgorithm& algorithm, const Operands& operands,
                             cudaStream_t stream) const {
  REPRISE_ASSIGN_OR_RETURN(const Product product, NewProduct(key, operands.h));
  REPRISE_ASSIGN_OR_RETURN(const Layouts layouts, NewLayouts(key));
  const float alpha = 1.0f, beta = key.add != 0 ? 1.0f : 0.0f;
  return CublasStatus(cublasLtMatmul(handle_, product.get(), &alpha, operands.b, layouts.b.get(), operands.a,
                                     layouts.a.get(), &beta, operands.c, layouts.c.get(), operands.c, layouts.c.get(),
                                     &algorithm, operands.workspace, static_cast<size_t>(key.workspace_bytes), stream),
                      Describe(key));
}

std::string ToText(const GemmKey& key) {
  std::string text;
  ForEachNumber(key, [&](int64_t number) { absl::StrAppend(&text, text.empty() ? "" : " ", number); });
  return text;
}

bool FromText(absl::string_view text, GemmKey& key) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  size_t next = 0;
  bool read = true;
  ForEachNumber(
      key, [&](int64_t& number) { read = read && next < words.size() && absl::SimpleAtoi(words[next++], &number); });
  return read && next == words.size();
}

std::string ToText(const std::optional<GemmAlgorithm>& choice) {
  if (!choice.has_value()) return std::string(kNoKernel);
  std::string text;
  for (const uint64_t word : choice->data) absl::StrAppend(&text, text.empty() ? "" : " ", absl::Hex(word));
  return text;
}

bool FromText(absl::string_view text, std::optional<GemmAlgorithm>& choice) {
  choice.reset();
  if (text == kNoKernel) return true;
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  choice.emplace();
  if (words.size() != std::size(choice->data)) return false;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!absl::SimpleHexAtoi(words[i], &choice->data[i])) return false;
  }
  return true;
}

}  // namespace reprise::kernels
