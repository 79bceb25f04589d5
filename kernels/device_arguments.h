// What each kernel takes, with the element types as values: one struct for its host reference and for its launch on a
// device. The functions in include/ check their arguments and make these, which mean what they mean there; those of a
// schedule's commands are in reprise/kernels/command_arguments.h. Free of Abseil, so that device code can include it.
#ifndef REPRISE_KERNELS_DEVICE_ARGUMENTS_H_
#define REPRISE_KERNELS_DEVICE_ARGUMENTS_H_

#include <cstdint>

#include "reprise/core/control_block.h"
#include "reprise/core/element.h"
#include "reprise/kernels/command_arguments.h"

namespace reprise::kernels {

// Elements that are read, and elements that are assigned or added to. Floating-point.
struct DeviceInput {
  DType dtype = DType::kFloat32;
  const void* data = nullptr;

  template <class T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
};
struct DeviceOutput {
  DType dtype = DType::kFloat32;
  void* data = nullptr;
  WriteMode mode = WriteMode::kAssign;

  explicit operator bool() const { return data != nullptr; }
  bool add() const { return mode == WriteMode::kAdd; }  // to the old values; else they are not read
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// ---- elementwise ----

struct CopyArguments {
  int64_t count = 0;
  DeviceInput from = {};
  DeviceOutput to = {};
};
// All of one dtype, as in the rest of this file where nothing else is said. b repeats every b_count elements.
struct AddArguments {
  int64_t count = 0;
  DeviceInput a = {}, b = {};
  int64_t b_count = 0;
  DeviceOutput y = {};
};
struct ActivationArguments {
  int64_t count = 0;
  DeviceInput x = {};
  DeviceOutput y = {};
};
struct ActivationBackwardArguments {
  int64_t count = 0;
  DeviceInput dy = {}, x = {};
  DeviceOutput dx = {};
};

// ---- sums over rows ----

// `sums`: float, or the dtype of x. It has at least `columns` elements; those past them are sums of nothing, 0.
struct ColumnSumArguments {
  int64_t rows = 0, columns = 0;
  DeviceInput x = {};
  int64_t sums_count = 0;
  DeviceOutput sums = {};
};
struct RmsNormArguments {
  int64_t rows = 0, columns = 0;
  float epsilon = 0;
  DeviceInput x = {}, gain = {};
  DeviceOutput y = {};
};
// dx and dgain may be empty. dgain: float, or the dtype of x.
struct RmsNormBackwardArguments {
  int64_t rows = 0, columns = 0;
  float epsilon = 0;
  DeviceInput dy = {}, x = {}, gain = {};
  DeviceOutput dx = {}, dgain = {};
};

// ---- language models ----

struct EmbeddingArguments {
  int64_t count = 0, entries = 0, width = 0;
  const int32_t* ids = nullptr;
  DeviceInput table = {};
  DeviceOutput y = {};
};
// dtable: float, or the dtype of dy.
struct EmbeddingBackwardArguments {
  int64_t count = 0, entries = 0, width = 0;
  DeviceInput dy = {};
  const int32_t* ids = nullptr;
  DeviceOutput dtable = {};
};
// qkv [sequences, time, 3 width], log_sum_exp [sequences, heads, time].
struct AttentionShape {
  int64_t sequences = 0, time = 0, width = 0, heads = 0;
};
struct CausalAttentionArguments {
  AttentionShape shape = {};
  DeviceInput qkv = {};
  DeviceOutput y = {};
  float* log_sum_exp = nullptr;
};
struct CausalAttentionBackwardArguments {
  AttentionShape shape = {};
  DeviceInput dy = {}, qkv = {};
  const float* log_sum_exp = nullptr;
  DeviceOutput dqkv = {};
};
struct CrossEntropyArguments {
  int64_t rows = 0, classes = 0;
  DeviceInput logits = {};
  const int32_t* labels = nullptr;
  float* loss = nullptr;
};
struct CrossEntropyBackwardArguments {
  int64_t rows = 0, classes = 0;
  const float* dloss = nullptr;
  DeviceInput logits = {};
  const int32_t* labels = nullptr;
  DeviceOutput dlogits = {};
};

// ---- commands of a schedule ----

struct NextMicrobatchArguments {
  ControlBlock* control = nullptr;
  int count = 0;
};
struct RecordLossArguments {
  StepState* step_state = nullptr;
  const float* loss = nullptr;
};
struct FinishNormArguments {
  const ControlBlock* control = nullptr;
  StepState* step_state = nullptr;
  const NormPart* parts = nullptr;
  int world_size = 0;
};
struct PublishMetricsArguments {
  const ControlBlock* control = nullptr;
  StepState* step_state = nullptr;
  MetricsRing* ring = nullptr;
  int world_size = 0;
};

}  // namespace reprise::kernels

// Every kernel that device code implements, with its arguments: KERNEL(name, struct). From this follow the functions of
// DeviceKernels, their form for CUDA and the launch functions.
#define REPRISE_FOR_DEVICE_KERNELS(KERNEL)                          \
  KERNEL(Copy, CopyArguments)                                       \
  KERNEL(Add, AddArguments)                                         \
  KERNEL(GeluTanh, ActivationArguments)                             \
  KERNEL(GeluTanhBackward, ActivationBackwardArguments)             \
  KERNEL(Relu, ActivationArguments)                                 \
  KERNEL(ReluBackward, ActivationBackwardArguments)                 \
  KERNEL(ColumnSum, ColumnSumArguments)                             \
  KERNEL(RmsNorm, RmsNormArguments)                                 \
  KERNEL(RmsNormBackward, RmsNormBackwardArguments)                 \
  KERNEL(Embedding, EmbeddingArguments)                             \
  KERNEL(EmbeddingBackward, EmbeddingBackwardArguments)             \
  KERNEL(CausalAttention, CausalAttentionArguments)                 \
  KERNEL(CausalAttentionBackward, CausalAttentionBackwardArguments) \
  KERNEL(CrossEntropy, CrossEntropyArguments)                       \
  KERNEL(CrossEntropyBackward, CrossEntropyBackwardArguments)       \
  KERNEL(Pack, PackArguments)                                       \
  KERNEL(ReduceAccumulate, ReduceAccumulateArguments)               \
  KERNEL(AdamW, AdamWArguments)                                     \
  KERNEL(Sgd, SgdArguments)                                         \
  KERNEL(NextMicrobatch, NextMicrobatchArguments)                   \
  KERNEL(StageInput, StageInputArguments)                           \
  KERNEL(RecordLoss, RecordLossArguments)                           \
  KERNEL(FinishNorm, FinishNormArguments)                           \
  KERNEL(PublishMetrics, PublishMetricsArguments)

#endif  // REPRISE_KERNELS_DEVICE_ARGUMENTS_H_
