#include "kernels/cuda/cuda_kernels.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_tuner.h"
#include "kernels/cuda/launch.h"
#include "reprise/core/status_macros.h"

namespace reprise::kernels {
namespace {

class KernelsOfStream : public CudaKernels {
 public:
  KernelsOfStream(const CudaKernelsOptions& options, int64_t shared_bytes, std::unique_ptr<CudaGemm> gemm)
      : place_{options.stream, options.workspace, options.workspace_bytes},
        shared_bytes_(shared_bytes),
        gemm_(std::move(gemm)) {}

#define REPRISE_DEFINE(Name, Arguments)                        \
  absl::Status Name(const Arguments& arguments) override {     \
    REPRISE_RETURN_IF_ERROR(CheckMemory(arguments));           \
    return CudaStatus(Launch##Name(place_, arguments), #Name); \
  }
  REPRISE_FOR_DEVICE_KERNELS(REPRISE_DEFINE)
#undef REPRISE_DEFINE

  absl::Status Gemm(const DeviceGemm& gemm) override {
    return gemm_->Run(gemm, place_.workspace, place_.workspace_bytes, place_.stream);
  }
  absl::StatusOr<bool> GemmGelu(const DeviceGemm& gemm, DeviceOutput h) override {
    return gemm_->RunWithGelu(gemm, CUBLASLT_EPILOGUE_GELU_AUX, h.data, place_.workspace, place_.workspace_bytes,
                              place_.stream);
  }
  absl::StatusOr<bool> GemmGeluBackward(const DeviceGemm& gemm, DeviceInput h) override {
    return gemm_->RunWithGelu(gemm, CUBLASLT_EPILOGUE_DGELU, h.data, place_.workspace, place_.workspace_bytes,
                              place_.stream);
  }

  absl::Status Tune() override { return TuneGemms(*gemm_, place_.workspace, place_.stream); }
  std::map<std::string, std::string> choices() const override {
    std::map<std::string, std::string> choices;
    for (const auto& [key, choice] : gemm_->choices()) {
      if (gemm_->first_choices().contains(key) || !MayLack(key, choice)) continue;
      choices.emplace(ToText(key), ToText(choice));
    }
    return choices;
  }
  absl::Status Choose(const std::map<std::string, std::string>& choices) override {
    std::vector<std::pair<GemmKey, std::optional<GemmAlgorithm>>> chosen;
    for (const auto& [key_text, choice_text] : choices) {
      auto& [key, choice] = chosen.emplace_back();
      const auto refuse = [&, &key_text = key_text, &choice_text = choice_text](absl::string_view why) {
        return absl::InvalidArgumentError(
            absl::StrCat("\"", key_text, "\": \"", choice_text, "\" is no choice of a GEMM's kernel", why));
      };
      if (!FromText(key_text, key) || !FromText(choice_text, choice) || !MayLack(key, choice)) return refuse("");
      if (!choice.has_value()) continue;
      const absl::Status able = gemm_->CheckChoice(key, *choice);
      if (!able.ok()) return refuse(absl::StrCat(" that can run here: ", std::string(able.message())));
    }
    for (const auto& [key, choice] : chosen) gemm_->Choose(key, choice);
    return absl::OkStatus();
  }

 private:
  // Only a product with GELU may be left to other kernels.
  static bool MayLack(const GemmKey& key, const std::optional<GemmAlgorithm>& choice) {
    return choice.has_value() || key.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
  }
  // Kernels without an overload fit into the smallest workspace, and into the shared memory that every block has.
  template <class Arguments>
  absl::Status CheckMemory(const Arguments&) const {
    return absl::OkStatus();
  }
  absl::Status CheckMemory(const RmsNormBackwardArguments& a) const {
    if (!a.dgain) return absl::OkStatus();
    return CheckWorkspace("RmsNormBackward", "rows", a.rows, RmsNormBackwardBytes(a.rows));
  }
  absl::Status CheckMemory(const EmbeddingBackwardArguments& a) const {
    return CheckWorkspace("EmbeddingBackward", "ids", a.count, EmbeddingBackwardBytes(a.count));
  }
  absl::Status CheckMemory(const CausalAttentionArguments& a) const {
    return CheckAttentionMemory("CausalAttention", a.shape.width / a.shape.heads, AttentionSharedBytes, shared_bytes_);
  }
  absl::Status CheckMemory(const CausalAttentionBackwardArguments& a) const {
    REPRISE_RETURN_IF_ERROR(
        CheckWorkspace("CausalAttentionBackward", "time", a.shape.time, AttentionBackwardBytes(a.shape.time)));
    return CheckAttentionMemory("CausalAttentionBackward", a.shape.width / a.shape.heads, AttentionBackwardSharedBytes,
                                shared_bytes_);
  }
  absl::Status CheckWorkspace(absl::string_view kernel, absl::string_view what, int64_t count, int64_t needed) const {
    if (needed <= place_.workspace_bytes) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(kernel, " of ", count, " ", what, " needs ", needed,
                                                     " bytes of workspace, of which the stream has ",
                                                     place_.workspace_bytes, "; give it a larger one"));
  }

  const LaunchPlace place_;
  const int64_t shared_bytes_;  // that a block may have
  const std::unique_ptr<CudaGemm> gemm_;
};

static_assert(kMinCudaWorkspaceBytes >= std::max(kColumnSumBytes, kCrossEntropyBytes));

}  // namespace

absl::Status CheckAttentionMemory(absl::string_view kernel, int64_t head_width, int64_t (*needed)(int64_t head_width),
                                  int64_t available) {
  if (needed(head_width) <= available) return absl::OkStatus();
  std::string remedy = "run it on another device";
  for (const int width : {32, 64}) {
    if (needed(width) <= available) remedy = absl::StrCat("give it more heads, of at most ", width, " elements each");
  }
  return absl::ResourceExhaustedError(absl::StrCat(kernel, " on heads of ", head_width, " elements needs ",
                                                   needed(head_width), " bytes of shared memory, but a block of this ",
                                                   "device has at most ", available, "; ", remedy));
}

size_t CublasLtVersion() { return cublasLtGetVersion(); }

absl::StatusOr<std::unique_ptr<CudaKernels>> NewCudaKernels(const CudaKernelsOptions& options) {
  if (options.workspace == nullptr || reinterpret_cast<uintptr_t>(options.workspace) % 256 != 0) {
    return absl::InvalidArgumentError("workspace is null or not 256-byte aligned; pass memory from cudaMalloc");
  }
  if (options.workspace_bytes < kMinCudaWorkspaceBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("workspace_bytes: ", options.workspace_bytes, "; pass at least ", kMinCudaWorkspaceBytes));
  }
  int device;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
  int shared_bytes = 0;
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                 "cudaDeviceGetAttribute"));
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<CudaGemm> gemm, CudaGemm::New());
  return std::make_unique<KernelsOfStream>(options, shared_bytes, std::move(gemm));
}

}  // namespace reprise::kernels
