// Stochastic gradient descent.
#ifndef REPRISE_KERNELS_SGD_H_
#define REPRISE_KERNELS_SGD_H_

#include "absl/status/status.h"
#include "reprise/core/stream.h"
#include "reprise/kernels/optimizer.h"

namespace reprise::kernels {

struct SgdArguments {
  UpdateArguments update = {};
  float momentum = 0;
  float weight_decay = 0;     // added to the gradient, times the master
  float* velocity = nullptr;  // starts at 0; needed with momentum only
};

// velocity = momentum velocity + gradient; master -= learning_rate velocity. Without momentum the gradient is used. A
// velocity or master that leaves the range of its dtype is infinite from then on.
absl::Status Sgd(Stream stream, const SgdArguments& arguments);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_SGD_H_
