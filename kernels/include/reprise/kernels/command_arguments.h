// The arguments of the commands of a schedule: what a kernel's caller, its host reference and its launch on a device
// all take. Free of Abseil, so that device code can include it.
#ifndef REPRISE_KERNELS_COMMAND_ARGUMENTS_H_
#define REPRISE_KERNELS_COMMAND_ARGUMENTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reprise/core/control_block.h"
#include "reprise/core/element.h"

namespace reprise::kernels {

// See pack.h.
struct PackArguments {
  DType gradient_dtype = DType::kFloat32;
  const void* gradient = nullptr;  // `rows` rows of `columns` elements, `row_stride` elements apart
  int64_t rows = 1;
  int64_t columns = 0;
  int64_t row_stride = 0;  // at least `columns` if there are several rows
  DType reduce_dtype = DType::kBFloat16;
  void* reduce_buffer = nullptr;
  int64_t reduce_element = 0;  // where the gradient starts in the reduce buffer, dense from there
};

// A run of elements.
struct Segment {
  int64_t first = 0;
  int64_t count = 0;
};

// See accumulate.h.
struct ReduceAccumulateArguments {
  const ControlBlock* control = nullptr;  // read at replay
  int position = 0;                       // of the microbatch whose gradient this is; -1: the replay before's last one
  AccumulateMode mode = AccumulateMode::kByMicrobatch;
  DType reduce_dtype = DType::kBFloat16;
  const void* parts = nullptr;  // of the ranks, in their order; a reduced gradient is one part
  int num_parts = 1;
  // If set: one more part, which lies by itself and stands before parts[own_place] in the order.
  const void* own = nullptr;
  int own_place = 0;
  int64_t elements = 0;  // of the accumulator and of each part
  float* accumulator = nullptr;
  // Of the accumulator and of each part, in order and apart; the rest is neither read nor written.
  std::vector<Segment> segments = {};
  double* norm_partials = nullptr;  // NormRanges(elements)
  // GEMMs run meanwhile: a device leaves them all multiprocessors but a few where that costs less time. No result
  // depends on it.
  bool beside_compute = false;
};

// What the optimizers share. The gradient is the sum divided by gradient_divisor times loss_scale, then, if its norm
// over all parameters exceeds clip_norm, scaled down to that norm. Nothing is read or written when step_state->skip
// says why not.
struct UpdateArguments {
  const ControlBlock* control = nullptr;  // learning_rate, gradient_divisor, loss_scale: read at replay
  const StepState* step_state = nullptr;  // after FinishNorm
  float clip_norm = 0;                    // finite, at least 0; 0: no clipping
  const float* gradient_sum = nullptr;
  DType master_dtype = DType::kFloat32;
  void* master = nullptr;
  int64_t count = 0;  // elements of each array
};

// See adamw.h.
struct AdamWArguments {
  UpdateArguments update = {};
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;
  float weight_decay = 0;  // decoupled: master -= learning_rate * weight_decay * master
  float* first_moment = nullptr;
  float* second_moment = nullptr;
};

// See sgd.h.
struct SgdArguments {
  UpdateArguments update = {};
  float momentum = 0;
  float weight_decay = 0;     // added to the gradient, times the master
  float* velocity = nullptr;  // starts at 0; needed with momentum only
};

// See step.h.
struct StageInputArguments {
  const ControlBlock* control = nullptr;  // read at replay
  int position = 0;                       // of the microbatch in the replay
  int slots = 2;
  const std::byte* staging = nullptr;
  int64_t slot_stride = 0;  // bytes, at least num_bytes if there are several slots
  int64_t num_bytes = 0;
  std::byte* destination = nullptr;
};

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_COMMAND_ARGUMENTS_H_
