// Elementwise non-linear functions. All tensors of a call have the same rows and columns, and elements T.
#ifndef REPRISE_KERNELS_ACTIVATIONS_H_
#define REPRISE_KERNELS_ACTIVATIONS_H_

#include "absl/status/status.h"
#include "reprise/core/compute.h"
#include "reprise/kernels/arguments.h"

namespace reprise::kernels {

// y = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.
template <KernelElement T>
absl::Status GeluTanh(Stream stream, Input<T> x, TensorView<T> y);
// dx = or += dy s(x) (1 + 2 u'(x) x (1 - s(x))), the derivative of GeluTanh, where y = x s(x), s(x) = (1 + tanh(u(x)))
// / 2 and u(x) = sqrt(2 / pi) (x + 0.044715 x^3).
template <KernelElement T>
absl::Status GeluTanhBackward(Stream stream, Input<T> dy, Input<T> x, Gradient<T> dx);

// y = x where x > 0, NaN where x is NaN, else 0.
template <KernelElement T>
absl::Status Relu(Stream stream, Input<T> x, TensorView<T> y);
// dx = or += dy where x > 0 or x is NaN, else 0.
template <KernelElement T>
absl::Status ReluBackward(Stream stream, Input<T> dy, Input<T> x, Gradient<T> dx);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_ACTIVATIONS_H_
