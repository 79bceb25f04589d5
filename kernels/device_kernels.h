// What a device stream offers to the kernels: each kernel's twin, with the element types as values. The functions in
// include/ check their arguments and call these; arguments mean what they mean there.
#ifndef REPRISE_KERNELS_DEVICE_KERNELS_H_
#define REPRISE_KERNELS_DEVICE_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/core/compute.h"
#include "reprise/core/control_block.h"
#include "reprise/core/dtype.h"
#include "reprise/core/schedule.h"
#include "reprise/kernels/accumulate.h"
#include "reprise/kernels/adamw.h"
#include "reprise/kernels/gemm.h"
#include "reprise/kernels/pack.h"
#include "reprise/kernels/sgd.h"
#include "reprise/kernels/step.h"

namespace reprise::kernels {

// Elements that are read, and elements that are assigned or added to. Floating-point.
struct DeviceInput {
  DType dtype = DType::kFloat32;
  const void* data = nullptr;
};
struct DeviceOutput {
  DType dtype = DType::kFloat32;
  void* data = nullptr;
  WriteMode mode = WriteMode::kAssign;

  explicit operator bool() const { return data != nullptr; }
};

template <class T>
DeviceInput InputOf(const TensorView<T>& view) {
  return {DTypeOf<std::remove_const_t<T>>::value, view.data};
}
template <class T>
DeviceOutput OutputOf(const TensorView<T>& view, WriteMode mode = WriteMode::kAssign) {
  return {DTypeOf<T>::value, view.data, mode};
}
template <class T>
DeviceOutput OutputOf(const Gradient<T>& gradient) {
  return {DTypeOf<T>::value, gradient.data, gradient.mode};
}

// A matrix product: c [m,n] = a [m,k] b [k,n]; an operand marked Transpose::kYes is stored transposed.
struct DeviceGemm {
  int64_t m = 0, n = 0, k = 0;
  DeviceInput a = {};
  Transpose transpose_a = Transpose::kNo;
  DeviceInput b = {};
  Transpose transpose_b = Transpose::kNo;
  DeviceOutput c = {};
};

// qkv [sequences, time, 3 width], log_sum_exp [sequences, heads, time].
struct AttentionShape {
  int64_t sequences = 0, time = 0, width = 0, heads = 0;
};

// Bound to one stream, which must outlive it. Each function enqueues its work there and returns; it never allocates or
// synchronises, so that a capture records all of it, and a replay needs nothing of this object. Not thread-safe.
class DeviceKernels {
 public:
  virtual ~DeviceKernels() = default;

  // Elementwise. Add: b repeats every b_count elements.
  virtual absl::Status Copy(int64_t count, DeviceInput from, DeviceOutput to) = 0;
  virtual absl::Status Add(int64_t count, DeviceInput a, DeviceInput b, int64_t b_count, DeviceOutput y) = 0;
  virtual absl::Status GeluTanh(int64_t count, DeviceInput x, DeviceOutput y) = 0;
  virtual absl::Status GeluTanhBackward(int64_t count, DeviceInput dy, DeviceInput x, DeviceOutput dx) = 0;
  virtual absl::Status Relu(int64_t count, DeviceInput x, DeviceOutput y) = 0;
  virtual absl::Status ReluBackward(int64_t count, DeviceInput dy, DeviceInput x, DeviceOutput dx) = 0;

  // Sums over rows. `sums` has at least `columns` elements; those past `columns` are sums of nothing, 0.
  virtual absl::Status ColumnSum(int64_t rows, int64_t columns, DeviceInput x, int64_t sums_count,
                                 DeviceOutput sums) = 0;
  virtual absl::Status RmsNorm(int64_t rows, int64_t columns, float epsilon, DeviceInput x, DeviceInput gain,
                               DeviceOutput y) = 0;
  // dx and dgain may be empty.
  virtual absl::Status RmsNormBackward(int64_t rows, int64_t columns, float epsilon, DeviceInput dy, DeviceInput x,
                                       DeviceInput gain, DeviceOutput dx, DeviceOutput dgain) = 0;

  virtual absl::Status Embedding(int64_t count, int64_t entries, int64_t width, const int32_t* ids, DeviceInput table,
                                 DeviceOutput y) = 0;
  virtual absl::Status EmbeddingBackward(int64_t count, int64_t entries, int64_t width, DeviceInput dy,
                                         const int32_t* ids, DeviceOutput dtable) = 0;
  virtual absl::Status CausalAttention(const AttentionShape& shape, DeviceInput qkv, DeviceOutput y,
                                       float* log_sum_exp) = 0;
  virtual absl::Status CausalAttentionBackward(const AttentionShape& shape, DeviceInput dy, DeviceInput qkv,
                                               const float* log_sum_exp, DeviceOutput dqkv) = 0;
  virtual absl::Status CrossEntropy(int64_t rows, int64_t classes, DeviceInput logits, const int32_t* labels,
                                    float* loss) = 0;
  virtual absl::Status CrossEntropyBackward(int64_t rows, int64_t classes, const float* dloss, DeviceInput logits,
                                            const int32_t* labels, DeviceOutput dlogits) = 0;
  virtual absl::Status Gemm(const DeviceGemm& gemm) = 0;
  // A product that is assigned, and GELU, in one kernel; false, with nothing enqueued, where there is none that does
  // both. GemmGelu: h = the product, gemm.c = GeluTanh(h). GemmGeluBackward: gemm.c = the product times gelu'(h).
  virtual absl::StatusOr<bool> GemmGelu(const DeviceGemm& gemm, DeviceOutput h) = 0;
  virtual absl::StatusOr<bool> GemmGeluBackward(const DeviceGemm& gemm, DeviceInput h) = 0;

  // Commands of a schedule.
  virtual absl::Status Pack(const PackArguments& arguments) = 0;
  virtual absl::Status ReduceAccumulate(const ReduceAccumulateArguments& arguments) = 0;
  virtual absl::Status AdamW(const AdamWArguments& arguments) = 0;
  virtual absl::Status Sgd(const SgdArguments& arguments) = 0;
  virtual absl::Status NextMicrobatch(ControlBlock* control, int count) = 0;
  virtual absl::Status StageInput(const StageInputArguments& arguments) = 0;
  virtual absl::Status RecordLoss(StepState* step_state, const float* loss) = 0;
  virtual absl::Status FinishNorm(const ControlBlock* control, StepState* step_state, const NormPart* parts,
                                  int world_size) = 0;
  virtual absl::Status PublishMetrics(const ControlBlock* control, StepState* step_state, MetricsRing* ring,
                                      int world_size) = 0;
};

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_DEVICE_KERNELS_H_
