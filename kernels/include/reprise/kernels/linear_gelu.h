// GELU on either side of a linear map, on a device in the GEMM's own kernel where there is one.
//
//   LinearGelu(stream, x, up, h, y);                              // h = x up^T, y = GeluTanh(h)
//   Linear(stream, y, down, z);                                   // z = y down^T
//   LinearBackward(stream, dz, y, down, Gradient<T>(), d_down);
//   GeluLinearBackward(stream, dz, h, down, dh);                  // from z over y to h
//   LinearBackward(stream, dh, x, up, dx, d_up);
//
// A product is a sum in float. The non-linear step may take it as it is or rounded to T, so that results may differ by
// that rounding from those of Linear, GeluTanh and their gradients. An infinite h may give NaN.
#ifndef REPRISE_KERNELS_LINEAR_GELU_H_
#define REPRISE_KERNELS_LINEAR_GELU_H_

#include "absl/status/status.h"
#include "reprise/core/compute.h"
#include "reprise/kernels/arguments.h"

namespace reprise::kernels {

// h = x w^T, y = GeluTanh(h). x [..., in], w [out, in], h and y [..., out]. h is for the backward pass.
template <KernelElement T>
absl::Status LinearGelu(Stream stream, Input<T> x, Input<T> w, TensorView<T> h, TensorView<T> y);

// The gradient of h where y = GeluTanh(h) w^T: dh = (dy w) gelu'(h), element by element. dy [..., out], w [out, in],
// h and dh [..., in]. dh is assigned. The gradient of w is LinearBackward's, whose x is GeluTanh(h).
template <KernelElement T>
absl::Status GeluLinearBackward(Stream stream, Input<T> dy, Input<T> h, Input<T> w, TensorView<T> dh);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_LINEAR_GELU_H_
