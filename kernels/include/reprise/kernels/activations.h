// Elementwise non-linear functions.
#ifndef REPRISE_KERNELS_ACTIVATIONS_H_
#define REPRISE_KERNELS_ACTIVATIONS_H_

#include "absl/status/status.h"
#include "reprise/core/compute.h"
#include "reprise/kernels/arguments.h"

namespace reprise::kernels {

// y = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.
template <KernelElement T>
absl::Status GeluTanh(Stream stream, Input<T> x, TensorView<T> y);
template <KernelElement T>
absl::Status GeluTanhBackward(Stream stream, Input<T> dy, Input<T> x, Gradient<T> dx);

// y = x where x > 0, NaN where x is NaN, else 0. The gradient at 0 is 0.
template <KernelElement T>
absl::Status Relu(Stream stream, Input<T> x, TensorView<T> y);
template <KernelElement T>
absl::Status ReluBackward(Stream stream, Input<T> dy, Input<T> x, Gradient<T> dx);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_ACTIVATIONS_H_
