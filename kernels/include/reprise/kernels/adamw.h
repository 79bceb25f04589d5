// The AdamW optimizer.
#ifndef REPRISE_KERNELS_ADAMW_H_
#define REPRISE_KERNELS_ADAMW_H_

#include "absl/status/status.h"
#include "reprise/core/stream.h"
#include "reprise/kernels/command_arguments.h"

namespace reprise::kernels {

// With the gradient g of UpdateArguments and t = step_state->optimizer_steps, this update included, element by element
// in float:
//   m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2,
//   master -= learning_rate (weight_decay master + m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon)).
// The master is f32 or bf16.
//
// For every finite gradient the update is AdamW's: but for the rounding of a dozen operations, a gradient beyond
// 2^64 (1.8e19), whose square no float holds, counts as 2^64 with its sign; and squares below 2^-149 are lost, which
// changes an update by at most a part of sqrt(2^-150 / (1 - beta2)) / epsilon of it (8.4e-7 of it with beta2 0.999 and
// epsilon 1e-15). A master that leaves the range of its dtype, by a learning rate that large, is infinite from then on.
absl::Status AdamW(Stream stream, const AdamWArguments& arguments);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_ADAMW_H_
