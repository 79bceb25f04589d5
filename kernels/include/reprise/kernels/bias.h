// Adds one vector to every row.
#ifndef REPRISE_KERNELS_BIAS_H_
#define REPRISE_KERNELS_BIAS_H_

#include "absl/status/status.h"
#include "reprise/core/compute.h"
#include "reprise/kernels/arguments.h"

namespace reprise::kernels {

// y = x + bias, row by row; x and y [..., width], bias of `width` elements.
template <KernelElement T>
absl::Status AddBias(Stream stream, Input<T> x, Input<T> bias, TensorView<T> y);

// dx = or += dy; dbias = or += the sum of dy over rows, in float. dy and dx [..., width], dbias of `width` elements.
// G: T or float.
template <KernelElement T, GradientElement<T> G>
absl::Status AddBiasBackward(Stream stream, Input<T> dy, Gradient<T> dx, Gradient<G> dbias);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_BIAS_H_
