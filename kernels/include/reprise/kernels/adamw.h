// The AdamW optimizer.
#ifndef REPRISE_KERNELS_ADAMW_H_
#define REPRISE_KERNELS_ADAMW_H_

#include "absl/status/status.h"
#include "reprise/core/stream.h"
#include "reprise/kernels/optimizer.h"

namespace reprise::kernels {

struct AdamWArguments {
  UpdateArguments update = {};
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;
  float weight_decay = 0;  // decoupled: master -= learning_rate * weight_decay * master
  float* first_moment = nullptr;
  float* second_moment = nullptr;
};

// A second moment that would be infinite becomes the largest float, so that later updates shrink it again. Bias
// correction takes step_state->optimizer_steps as the number of updates, this one included.
absl::Status AdamW(Stream stream, const AdamWArguments& arguments);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_ADAMW_H_
