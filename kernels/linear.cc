#include "reprise/kernels/linear.h"

#include "kernels/checks.h"
#include "kernels/numeric.h"
#include "reprise/core/status_macros.h"
#include "reprise/kernels/gemm.h"

namespace reprise::kernels {

template <KernelElement T>
absl::Status Linear(Stream stream, Input<T> x, Input<T> w, TensorView<T> y) {
  REPRISE_RETURN_IF_ERROR(Checks("Linear")
                              .Present("x", x)
                              .Present("w", w)
                              .Present("y", y)
                              .Equal("columns of x", Columns(x), "columns of w", Columns(w))
                              .Equal("columns of y", Columns(y), "rows of w", Rows(w))
                              .Equal("rows of y", Rows(y), "rows of x", Rows(x))
                              .Done());
  return Gemm<T, T>(stream, x, Transpose::kNo, w, Transpose::kYes, WriteMode::kAssign, y);
}

template <KernelElement T, GradientElement<T> G>
absl::Status LinearBackward(Stream stream, Input<T> dy, Input<T> x, Input<T> w, Gradient<T> dx, Gradient<G> dw) {
  REPRISE_RETURN_IF_ERROR(Checks("LinearBackward")
                              .Present("dy", dy)
                              .Present("x", x)
                              .Present("w", w)
                              .Equal("columns of x", Columns(x), "columns of w", Columns(w))
                              .Equal("columns of dy", Columns(dy), "rows of w", Rows(w))
                              .Equal("rows of dy", Rows(dy), "rows of x", Rows(x))
                              .Wanted("dx", dx, "x", x)
                              .Wanted("dw", dw, "w", w)
                              .Done());
  if (dx) REPRISE_RETURN_IF_ERROR((Gemm<T, T>(stream, dy, Transpose::kNo, w, Transpose::kNo, dx.mode, dx)));
  if (dw) REPRISE_RETURN_IF_ERROR((Gemm<T, G>(stream, dy, Transpose::kYes, x, Transpose::kNo, dw.mode, dw)));
  return absl::OkStatus();
}

template absl::Status Linear(Stream, Input<float>, Input<float>, TensorView<float>);
template absl::Status Linear(Stream, Input<BFloat16>, Input<BFloat16>, TensorView<BFloat16>);
#define REPRISE_INSTANTIATE(T, G) \
  template absl::Status LinearBackward(Stream, Input<T>, Input<T>, Input<T>, Gradient<T>, Gradient<G>);
REPRISE_FOR_ACTIVATION_AND_GRADIENT(REPRISE_INSTANTIATE)
#undef REPRISE_INSTANTIATE

}  // namespace reprise::kernels
