// y = x w^T, the linear map without bias.
#ifndef REPRISE_KERNELS_LINEAR_H_
#define REPRISE_KERNELS_LINEAR_H_

#include "absl/status/status.h"
#include "reprise/core/compute.h"
#include "reprise/kernels/arguments.h"

namespace reprise::kernels {

// x [..., in], w [out, in], y [..., out].
template <KernelElement T>
absl::Status Linear(Stream stream, Input<T> x, Input<T> w, TensorView<T> y);

// dx = dy w, dw = dy^T x. G: T or float.
template <KernelElement T, GradientElement<T> G>
absl::Status LinearBackward(Stream stream, Input<T> dy, Input<T> x, Input<T> w, Gradient<T> dx, Gradient<G> dw);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_LINEAR_H_
