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

Element ElementOf(DType dtype) { return dtype == DType::kFloat32 ? Element::kFloat : Element::kBFloat16; }
Source SourceOf(DeviceInput input) { return {input.data, ElementOf(input.dtype)}; }
Target TargetOf(DeviceOutput output) { return {output.data, ElementOf(output.dtype), output.mode == WriteMode::kAdd}; }
AttentionExtents ExtentsOf(const AttentionShape& shape) {
  return {shape.sequences, shape.time, shape.width, shape.heads};
}
UpdateLaunch UpdateOf(const UpdateArguments& u, float weight_decay) {
  return {.control = u.control,
          .step_state = u.step_state,
          .clip_norm = u.clip_norm,
          .gradient_sum = u.gradient_sum,
          .master = u.master,
          .master_element = ElementOf(u.master_dtype),
          .count = u.count,
          .weight_decay = weight_decay};
}

class KernelsOfStream : public CudaKernels {
 public:
  KernelsOfStream(const CudaKernelsOptions& options, int64_t shared_bytes, std::unique_ptr<CudaGemm> gemm)
      : stream_(options.stream),
        workspace_(options.workspace),
        workspace_bytes_(options.workspace_bytes),
        shared_bytes_(shared_bytes),
        gemm_(std::move(gemm)) {}

  absl::Status Copy(int64_t count, DeviceInput from, DeviceOutput to) override {
    return CudaStatus(LaunchCopy(stream_, count, SourceOf(from), TargetOf(to)), "Copy");
  }
  absl::Status Add(int64_t count, DeviceInput a, DeviceInput b, int64_t b_count, DeviceOutput y) override {
    return CudaStatus(LaunchAdd(stream_, count, SourceOf(a), SourceOf(b), b_count, TargetOf(y)), "Add");
  }
  absl::Status GeluTanh(int64_t count, DeviceInput x, DeviceOutput y) override {
    return CudaStatus(LaunchGelu(stream_, count, SourceOf(x), TargetOf(y)), "GeluTanh");
  }
  absl::Status GeluTanhBackward(int64_t count, DeviceInput dy, DeviceInput x, DeviceOutput dx) override {
    return CudaStatus(LaunchGeluBackward(stream_, count, SourceOf(dy), SourceOf(x), TargetOf(dx)), "GeluTanhBackward");
  }
  absl::Status Relu(int64_t count, DeviceInput x, DeviceOutput y) override {
    return CudaStatus(LaunchRelu(stream_, count, SourceOf(x), TargetOf(y)), "Relu");
  }
  absl::Status ReluBackward(int64_t count, DeviceInput dy, DeviceInput x, DeviceOutput dx) override {
    return CudaStatus(LaunchReluBackward(stream_, count, SourceOf(dy), SourceOf(x), TargetOf(dx)), "ReluBackward");
  }

  absl::Status ColumnSum(int64_t rows, int64_t columns, DeviceInput x, int64_t sums_count, DeviceOutput sums) override {
    return CudaStatus(
        LaunchColumnSum(stream_, rows, columns, SourceOf(x), sums_count, TargetOf(sums), Workspace<float>()),
        "ColumnSum");
  }
  absl::Status RmsNorm(int64_t rows, int64_t columns, float epsilon, DeviceInput x, DeviceInput gain,
                       DeviceOutput y) override {
    return CudaStatus(LaunchRmsNorm(stream_, rows, columns, epsilon, SourceOf(x), SourceOf(gain), TargetOf(y)),
                      "RmsNorm");
  }
  absl::Status RmsNormBackward(int64_t rows, int64_t columns, float epsilon, DeviceInput dy, DeviceInput x,
                               DeviceInput gain, DeviceOutput dx, DeviceOutput dgain) override {
    if (!dx && !dgain) return absl::OkStatus();
    float* factors = dgain ? Workspace<float>(kColumnSumBytes) : nullptr;
    if (dgain) {
      REPRISE_RETURN_IF_ERROR(
          CheckWorkspace("RmsNormBackward", "rows", rows, kColumnSumBytes + rows * int64_t{sizeof(float)}));
    }
    REPRISE_RETURN_IF_ERROR(CudaStatus(LaunchRmsNormBackward(stream_, rows, columns, epsilon, SourceOf(dy), SourceOf(x),
                                                             SourceOf(gain), TargetOf(dx), factors),
                                       "RmsNormBackward"));
    if (!dgain) return absl::OkStatus();
    return CudaStatus(LaunchRmsNormGain(stream_, rows, columns, SourceOf(dy), SourceOf(x), factors, TargetOf(dgain),
                                        Workspace<float>()),
                      "RmsNormBackward, the gain's gradient");
  }

  absl::Status Embedding(int64_t count, int64_t entries, int64_t width, const int32_t* ids, DeviceInput table,
                         DeviceOutput y) override {
    return CudaStatus(LaunchEmbedding(stream_, count, entries, width, ids, SourceOf(table), TargetOf(y)), "Embedding");
  }
  absl::Status EmbeddingBackward(int64_t count, int64_t entries, int64_t width, DeviceInput dy, const int32_t* ids,
                                 DeviceOutput dtable) override {
    REPRISE_RETURN_IF_ERROR(CheckWorkspace("EmbeddingBackward", "ids", count, EmbeddingBackwardBytes(count)));
    return CudaStatus(
        LaunchEmbeddingBackward(stream_, count, entries, width, SourceOf(dy), ids, TargetOf(dtable), workspace_),
        "EmbeddingBackward");
  }
  absl::Status CausalAttention(const AttentionShape& shape, DeviceInput qkv, DeviceOutput y,
                               float* log_sum_exp) override {
    REPRISE_RETURN_IF_ERROR(
        CheckAttentionMemory("CausalAttention", shape.width / shape.heads, AttentionSharedBytes, shared_bytes_));
    return CudaStatus(LaunchAttention(stream_, ExtentsOf(shape), SourceOf(qkv), TargetOf(y), log_sum_exp),
                      "CausalAttention");
  }
  absl::Status CausalAttentionBackward(const AttentionShape& shape, DeviceInput dy, DeviceInput qkv,
                                       const float* log_sum_exp, DeviceOutput dqkv) override {
    REPRISE_RETURN_IF_ERROR(
        CheckWorkspace("CausalAttentionBackward", "time", shape.time, AttentionBackwardBytes(shape.time)));
    REPRISE_RETURN_IF_ERROR(CheckAttentionMemory("CausalAttentionBackward", shape.width / shape.heads,
                                                 AttentionBackwardSharedBytes, shared_bytes_));
    return CudaStatus(LaunchAttentionBackward(stream_, ExtentsOf(shape), SourceOf(dy), SourceOf(qkv), log_sum_exp,
                                              TargetOf(dqkv), Workspace<float>(), workspace_bytes_),
                      "CausalAttentionBackward");
  }
  absl::Status CrossEntropy(int64_t rows, int64_t classes, DeviceInput logits, const int32_t* labels,
                            float* loss) override {
    return CudaStatus(LaunchCrossEntropy(stream_, rows, classes, SourceOf(logits), labels, loss, workspace_),
                      "CrossEntropy");
  }
  absl::Status CrossEntropyBackward(int64_t rows, int64_t classes, const float* dloss, DeviceInput logits,
                                    const int32_t* labels, DeviceOutput dlogits) override {
    return CudaStatus(
        LaunchCrossEntropyBackward(stream_, rows, classes, dloss, SourceOf(logits), labels, TargetOf(dlogits)),
        "CrossEntropyBackward");
  }
  absl::Status Gemm(const DeviceGemm& gemm) override { return gemm_->Run(gemm, workspace_, workspace_bytes_, stream_); }
  absl::StatusOr<bool> GemmGelu(const DeviceGemm& gemm, DeviceOutput h) override {
    return gemm_->RunWithGelu(gemm, CUBLASLT_EPILOGUE_GELU_AUX, h.data, workspace_, workspace_bytes_, stream_);
  }
  absl::StatusOr<bool> GemmGeluBackward(const DeviceGemm& gemm, DeviceInput h) override {
    return gemm_->RunWithGelu(gemm, CUBLASLT_EPILOGUE_DGELU, h.data, workspace_, workspace_bytes_, stream_);
  }

  absl::Status Pack(const PackArguments& a) override {
    const DeviceInput gradient = {a.gradient_dtype, a.gradient};
    const DeviceOutput wire = {a.wire_dtype, static_cast<std::byte*>(a.wire) + a.wire_element * SizeOf(a.wire_dtype),
                               WriteMode::kAssign};
    if (a.rows == 1) return CudaStatus(LaunchCopy(stream_, a.columns, SourceOf(gradient), TargetOf(wire)), "Pack");
    return CudaStatus(LaunchCopyRows(stream_, a.rows, a.columns, a.row_stride, SourceOf(gradient), TargetOf(wire)),
                      "Pack");
  }
  absl::Status ReduceAccumulate(const ReduceAccumulateArguments& a) override {
    AccumulateLaunch launch = {.control = a.mode == AccumulateMode::kByMicrobatch ? a.control : nullptr,
                               .position = a.position,
                               .parts = {a.parts, ElementOf(a.wire_dtype)},
                               .num_parts = a.num_parts,
                               .own = a.own,
                               .own_place = a.own_place,
                               .elements = a.elements,
                               .accumulator = a.accumulator,
                               .norm_partials = a.norm_partials,
                               .beside_compute = a.beside_compute};
    const size_t num_segments = a.segments.size();
    size_t next = 0;
    do {
      launch.begin = launch.end;
      launch.num_segments = static_cast<int>(std::min<size_t>(kMaxSegments, num_segments - next));
      for (int s = 0; s < launch.num_segments; ++s, ++next) {
        launch.first[s] = a.segments[next].first;
        launch.count[s] = a.segments[next].count;
      }
      launch.end = next < num_segments ? a.segments[next].first : a.elements;
      REPRISE_RETURN_IF_ERROR(CudaStatus(LaunchAccumulate(stream_, launch), "ReduceAccumulate"));
    } while (next < num_segments);
    return absl::OkStatus();
  }
  absl::Status AdamW(const AdamWArguments& a) override {
    return CudaStatus(LaunchAdamW(stream_, {.update = UpdateOf(a.update, a.weight_decay),
                                            .beta1 = a.beta1,
                                            .beta2 = a.beta2,
                                            .epsilon = a.epsilon,
                                            .first_moment = a.first_moment,
                                            .second_moment = a.second_moment}),
                      "AdamW");
  }
  absl::Status Sgd(const SgdArguments& a) override {
    return CudaStatus(
        LaunchSgd(stream_,
                  {.update = UpdateOf(a.update, a.weight_decay), .momentum = a.momentum, .velocity = a.velocity}),
        "Sgd");
  }
  absl::Status NextMicrobatch(ControlBlock* control, int count) override {
    return CudaStatus(LaunchNextMicrobatch(stream_, control, count), "NextMicrobatch");
  }
  absl::Status StageInput(const StageInputArguments& a) override {
    return CudaStatus(LaunchStageInput(stream_, {.control = a.control,
                                                 .position = a.position,
                                                 .slots = a.slots,
                                                 .staging = a.staging,
                                                 .slot_stride = a.slot_stride,
                                                 .num_bytes = a.num_bytes,
                                                 .destination = a.destination}),
                      "StageInput");
  }
  absl::Status RecordLoss(StepState* step_state, const float* loss) override {
    return CudaStatus(LaunchRecordLoss(stream_, step_state, loss), "RecordLoss");
  }
  absl::Status FinishNorm(const ControlBlock* control, StepState* step_state, const NormPart* parts,
                          int world_size) override {
    return CudaStatus(LaunchFinishNorm(stream_, control, step_state, parts, world_size), "FinishNorm");
  }
  absl::Status PublishMetrics(const ControlBlock* control, StepState* step_state, MetricsRing* ring,
                              int world_size) override {
    return CudaStatus(LaunchPublishMetrics(stream_, control, step_state, ring, world_size), "PublishMetrics");
  }

  absl::Status Tune() override { return TuneGemms(*gemm_, workspace_, stream_); }
  bool has_untuned() const override { return !gemm_->first_choices().empty(); }
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
            absl::StrCat("\"", key_text, "\": \"", choice_text, "\" is no choice of a matrix product's kernel", why));
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
  template <class T>
  T* Workspace(int64_t offset_bytes = 0) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(workspace_) + offset_bytes);
  }
  // Only a product with GELU may be left to other kernels.
  static bool MayLack(const GemmKey& key, const std::optional<GemmAlgorithm>& choice) {
    return choice.has_value() || key.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
  }
  absl::Status CheckWorkspace(absl::string_view kernel, absl::string_view what, int64_t count, int64_t needed) const {
    if (needed <= workspace_bytes_) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(kernel, " of ", count, " ", what, " needs ", needed,
                                                     " bytes of workspace, of which the stream has ", workspace_bytes_,
                                                     "; give it a larger one"));
  }

  const cudaStream_t stream_;
  void* const workspace_;
  const int64_t workspace_bytes_;
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
