#include "reprise/kernels/rms_norm.h"

#include <cmath>

#include "kernels/checks.h"
#include "kernels/column_sum.h"
#include "kernels/device_kernels.h"
#include "kernels/host_math.h"
#include "kernels/numeric.h"
#include "kernels/parallel.h"
#include "reprise/core/status_macros.h"

namespace reprise::kernels {
namespace {

float RowFactor(const float* x, int64_t columns, float epsilon) {
  return 1.0f / std::sqrt(Math().dot(x, x, columns) / static_cast<float>(columns) + epsilon);
}

template <class T>
void Forward(const RmsNormArguments& a) {
  const int64_t rows = a.rows, columns = a.columns;
  const T *x = a.x.as<T>(), *gain = a.gain.as<T>();
  T* y = a.y.as<T>();
  ParallelForRanges(rows, RowGrain(columns), [&](int64_t begin, int64_t end) {
    const std::unique_ptr<float[]> x_buffer = Floats(columns), gain_buffer = Floats(columns), out = Floats(columns);
    const float* g = Load(gain, columns, gain_buffer.get());
    for (int64_t r = begin; r < end; ++r) {
      const float* row = Load(x + r * columns, columns, x_buffer.get());
      const float factor = RowFactor(row, columns, a.epsilon);
      for (int64_t c = 0; c < columns; ++c) out[c] = row[c] * factor * g[c];
      Store(out.get(), columns, WriteMode::kAssign, y + r * columns);
    }
  });
}

// With the factor f of a row and h = gain dy: dx = f h - x f^3 dot(h, x) / columns. The factors are kept for the gain.
template <class T>
void InputGradient(const RmsNormBackwardArguments& a, float* factors) {
  const int64_t rows = a.rows, columns = a.columns;
  const T *dy = a.dy.as<T>(), *x = a.x.as<T>(), *gain = a.gain.as<T>();
  T* dx = a.dx.as<T>();
  ParallelForRanges(rows, RowGrain(columns), [&](int64_t begin, int64_t end) {
    const std::unique_ptr<float[]> x_buffer = Floats(columns), dy_buffer = Floats(columns),
                                   gain_buffer = Floats(columns), h = Floats(columns);
    const float* g = Load(gain, columns, gain_buffer.get());
    for (int64_t r = begin; r < end; ++r) {
      const float* row = Load(x + r * columns, columns, x_buffer.get());
      const float factor = factors[r] = RowFactor(row, columns, a.epsilon);
      if (dx == nullptr) continue;
      const float* d = Load(dy + r * columns, columns, dy_buffer.get());
      for (int64_t c = 0; c < columns; ++c) h[c] = g[c] * d[c];
      const float projection =
          factor * factor * factor * (Math().dot(h.get(), row, columns) / static_cast<float>(columns));
      for (int64_t c = 0; c < columns; ++c) h[c] = factor * h[c] - projection * row[c];
      Store(h.get(), columns, a.dx.mode, dx + r * columns);
    }
  });
}

template <class T, class G>
void Backward(const RmsNormBackwardArguments& a) {
  const std::unique_ptr<float[]> factors = Floats(a.rows);
  InputGradient<T>(a, factors.get());
  if (!a.dgain) return;
  ColumnSum(a.rows, a.columns, a.dgain.mode, a.dgain.as<G>(), [&](int64_t row, float* sums) {
    const T *d = a.dy.as<T>() + row * a.columns, *v = a.x.as<T>() + row * a.columns;
    const float factor = factors[row];
    for (int64_t c = 0; c < a.columns; ++c) sums[c] += static_cast<float>(d[c]) * static_cast<float>(v[c]) * factor;
  });
}

}  // namespace

template <KernelElement T>
absl::Status RmsNorm(Stream stream, Input<T> x, Input<T> gain, TensorView<T> y, float epsilon) {
  REPRISE_RETURN_IF_ERROR(Checks("RmsNorm")
                              .Present("x", x)
                              .Present("gain", gain)
                              .Present("y", y)
                              .Equal("elements of gain", NumElements(gain.shape), "columns of x", Columns(x))
                              .Same("y", y, "x", x)
                              .NotNegative("epsilon", epsilon)
                              .Done());
  return Enqueue(stream, &DeviceKernels::RmsNorm,
                 {Rows(x), Columns(x), epsilon, InputOf(x), InputOf(gain), OutputOf(y)}, Forward<T>);
}

template <KernelElement T, GradientElement<T> G>
absl::Status RmsNormBackward(Stream stream, Input<T> dy, Input<T> x, Input<T> gain, float epsilon, Gradient<T> dx,
                             Gradient<G> dgain) {
  REPRISE_RETURN_IF_ERROR(Checks("RmsNormBackward")
                              .Present("dy", dy)
                              .Present("x", x)
                              .Present("gain", gain)
                              .Equal("elements of gain", NumElements(gain.shape), "columns of x", Columns(x))
                              .Same("dy", dy, "x", x)
                              .NotNegative("epsilon", epsilon)
                              .Wanted("dx", dx, "x", x)
                              .Wanted("dgain", dgain, "gain", gain)
                              .Done());
  return Enqueue(stream, &DeviceKernels::RmsNormBackward,
                 {Rows(x), Columns(x), epsilon, InputOf(dy), InputOf(x), InputOf(gain), OutputOf(dx), OutputOf(dgain)},
                 Backward<T, G>);
}

template absl::Status RmsNorm(Stream, Input<float>, Input<float>, TensorView<float>, float);
template absl::Status RmsNorm(Stream, Input<BFloat16>, Input<BFloat16>, TensorView<BFloat16>, float);
#define REPRISE_INSTANTIATE(T, G) \
  template absl::Status RmsNormBackward(Stream, Input<T>, Input<T>, Input<T>, float, Gradient<T>, Gradient<G>);
REPRISE_FOR_ACTIVATION_AND_GRADIENT(REPRISE_INSTANTIATE)
#undef REPRISE_INSTANTIATE

}  // namespace reprise::kernels
