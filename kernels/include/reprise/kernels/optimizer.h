// What the optimizers share. The gradient is the sum divided by gradient_divisor times loss_scale, then, if its norm
// over all parameters exceeds clip_norm, scaled down to that norm. Nothing is read or written when step_state->skip
// says why not.
#ifndef REPRISE_KERNELS_OPTIMIZER_H_
#define REPRISE_KERNELS_OPTIMIZER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/core/control_block.h"
#include "reprise/core/dtype.h"
#include "reprise/core/stream.h"

namespace reprise::kernels {

struct UpdateArguments {
  const ControlBlock* control = nullptr;  // learning_rate, gradient_divisor, loss_scale: read at replay
  const StepState* step_state = nullptr;  // after FinishNorm
  float clip_norm = 0;                    // 0: no clipping
  const float* gradient_sum = nullptr;
  DType master_dtype = DType::kFloat32;
  void* master = nullptr;
  int64_t count = 0;  // elements of each array
};

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_OPTIMIZER_H_
