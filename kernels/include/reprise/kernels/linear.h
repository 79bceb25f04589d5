// y = x w^T, the linear map without bias.
#ifndef REPRISE_KERNELS_LINEAR_H_
#define REPRISE_KERNELS_LINEAR_H_

#include "absl/status/status.h"
#include "reprise/core/compute.h"
#include "reprise/kernels/arguments.h"

namespace reprise::kernels {

// y = x w^T; x [..., in], w [out, in], y [..., out] with as many rows as x.
template <KernelElement T>
absl::Status Linear(Stream stream, Input<T> x, Input<T> w, TensorView<T> y);

// dx = or += dy w, dw = or += dy^T x. dy [..., out], x and dx [..., in], w and dw [out, in]. G: T or float.
template <KernelElement T, GradientElement<T> G>
absl::Status LinearBackward(Stream stream, Input<T> dy, Input<T> x, Input<T> w, Gradient<T> dx, Gradient<G> dw);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_LINEAR_H_
