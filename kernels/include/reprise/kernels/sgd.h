// Stochastic gradient descent.
#ifndef REPRISE_KERNELS_SGD_H_
#define REPRISE_KERNELS_SGD_H_

#include "absl/status/status.h"
#include "reprise/core/stream.h"
#include "reprise/kernels/command_arguments.h"

namespace reprise::kernels {

// With the gradient g of UpdateArguments, element by element in float: velocity = momentum velocity + (g + weight_decay
// master); master -= learning_rate velocity. Without momentum g + weight_decay master stands for the velocity, which
// is not touched. The master is f32 or bf16. A velocity or master that leaves the range of its dtype is infinite from
// then on.
absl::Status Sgd(Stream stream, const SgdArguments& arguments);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_SGD_H_
