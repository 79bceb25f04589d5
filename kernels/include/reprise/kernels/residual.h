// The sum of two tensors, as where a branch joins the residual stream.
#ifndef REPRISE_KERNELS_RESIDUAL_H_
#define REPRISE_KERNELS_RESIDUAL_H_

#include "absl/status/status.h"
#include "reprise/core/compute.h"
#include "reprise/kernels/arguments.h"

namespace reprise::kernels {

// y = a + b, element by element. All have the same rows and columns.
template <KernelElement T>
absl::Status Add(Stream stream, Input<T> a, Input<T> b, TensorView<T> y);

// da = or += dy, db = or += dy. All have the same rows and columns.
template <KernelElement T>
absl::Status AddBackward(Stream stream, Input<T> dy, Gradient<T> da, Gradient<T> db);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_RESIDUAL_H_
