#include "reprise/kernels/linear_gelu.h"

#include "kernels/checks.h"
#include "kernels/device_kernels.h"
#include "reprise/core/status_macros.h"
#include "reprise/kernels/activations.h"
#include "reprise/kernels/gemm.h"

namespace reprise::kernels {

template <KernelElement T>
absl::Status LinearGelu(Stream stream, Input<T> x, Input<T> w, TensorView<T> h, TensorView<T> y) {
  REPRISE_RETURN_IF_ERROR(Checks("LinearGelu")
                              .Present("x", x)
                              .Present("w", w)
                              .Present("h", h)
                              .Present("y", y)
                              .Equal("columns of x", Columns(x), "columns of w", Columns(w))
                              .Equal("columns of h", Columns(h), "rows of w", Rows(w))
                              .Equal("rows of h", Rows(h), "rows of x", Rows(x))
                              .Same("y", y, "h", h)
                              .Done());
  if (!stream.is_host()) {
    REPRISE_ASSIGN_OR_RETURN(const bool done, stream.device_kernels().GemmGelu({.m = Rows(x),
                                                                                .n = Rows(w),
                                                                                .k = Columns(x),
                                                                                .a = InputOf(x),
                                                                                .b = InputOf(w),
                                                                                .transpose_b = Transpose::kYes,
                                                                                .c = OutputOf(y)},
                                                                               OutputOf(h)));
    if (done) return absl::OkStatus();
  }
  REPRISE_RETURN_IF_ERROR((Gemm<T, T>(stream, x, Transpose::kNo, w, Transpose::kYes, WriteMode::kAssign, h)));
  return GeluTanh<T>(stream, h, y);
}

template <KernelElement T>
absl::Status GeluLinearBackward(Stream stream, Input<T> dy, Input<T> h, Input<T> w, TensorView<T> dh) {
  REPRISE_RETURN_IF_ERROR(Checks("GeluLinearBackward")
                              .Present("dy", dy)
                              .Present("h", h)
                              .Present("w", w)
                              .Present("dh", dh)
                              .Equal("columns of h", Columns(h), "columns of w", Columns(w))
                              .Equal("columns of dy", Columns(dy), "rows of w", Rows(w))
                              .Equal("rows of dy", Rows(dy), "rows of h", Rows(h))
                              .Same("dh", dh, "h", h)
                              .Done());
  if (!stream.is_host()) {
    REPRISE_ASSIGN_OR_RETURN(
        const bool done,
        stream.device_kernels().GemmGeluBackward(
            {.m = Rows(dy), .n = Columns(w), .k = Rows(w), .a = InputOf(dy), .b = InputOf(w), .c = OutputOf(dh)},
            InputOf(h)));
    if (done) return absl::OkStatus();
  }
  REPRISE_RETURN_IF_ERROR((Gemm<T, T>(stream, dy, Transpose::kNo, w, Transpose::kNo, WriteMode::kAssign, dh)));
  // In place, which these elementwise kernels allow: each element is read before it is written.
  return GeluTanhBackward<T>(stream, dh, h, Gradient<T>{dh, WriteMode::kAssign});
}

#define REPRISE_INSTANTIATE(T)                                                                \
  template absl::Status LinearGelu(Stream, Input<T>, Input<T>, TensorView<T>, TensorView<T>); \
  template absl::Status GeluLinearBackward(Stream, Input<T>, Input<T>, Input<T>, TensorView<T>);
REPRISE_INSTANTIATE(float)
REPRISE_INSTANTIATE(BFloat16)
#undef REPRISE_INSTANTIATE

}  // namespace reprise::kernels
