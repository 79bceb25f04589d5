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

// For every finite gradient the update is AdamW's: but for the rounding of a dozen operations, a gradient beyond
// 2^64 (1.8e19), whose square no float holds, counts as 2^64 with its sign; and squares below 2^-149 are lost, which
// changes an update by at most a part of sqrt(2^-150 / (1 - beta2)) / epsilon of it (8.4e-7 of it with beta2 0.999 and
// epsilon 1e-15). A master that leaves the range of its dtype, by a learning rate that large, is infinite from then on.
// Bias correction takes step_state->optimizer_steps as the number of updates, this one included.
absl::Status AdamW(Stream stream, const AdamWArguments& arguments);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_ADAMW_H_
