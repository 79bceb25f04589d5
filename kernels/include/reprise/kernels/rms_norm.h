// Root-mean-square normalisation of rows.
#ifndef REPRISE_KERNELS_RMS_NORM_H_
#define REPRISE_KERNELS_RMS_NORM_H_

#include "absl/status/status.h"
#include "reprise/core/compute.h"
#include "reprise/kernels/arguments.h"

namespace reprise::kernels {

// y = gain x r with r = 1 / sqrt(mean(x^2) + epsilon), row by row; x and y [..., width], gain of `width` elements.
// epsilon is finite and at least 0.
template <KernelElement T>
absl::Status RmsNorm(Stream stream, Input<T> x, Input<T> gain, TensorView<T> y, float epsilon);

// With the row's r again from x and h = gain dy: dx = or += r h - x r^3 mean(h x), row by row, and dgain = or += the
// sum over rows of dy x r, in float. Shapes as for RmsNorm: dy and dx as x, dgain as gain. G: T or float.
template <KernelElement T, GradientElement<T> G>
absl::Status RmsNormBackward(Stream stream, Input<T> dy, Input<T> x, Input<T> gain, float epsilon, Gradient<T> dx,
                             Gradient<G> dgain);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_RMS_NORM_H_
