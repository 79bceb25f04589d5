#include "reprise/kernels/gemm.h"

#include <algorithm>

#include "kernels/checks.h"
#include "kernels/device_kernels.h"
#include "kernels/host_math.h"
#include "kernels/numeric.h"
#include "kernels/parallel.h"
#include "reprise/core/status_macros.h"

namespace reprise::kernels {
namespace {

// Each part packs the other operand anew, so it should be worth 16 million operations (about 0.1 ms) and be 128 wide.
// Eigen's micro-kernel is 48 columns wide with AVX-512 and 4 rows high: parts are multiples of these.
constexpr int64_t kOperationsPerPart = 16'000'000;
constexpr int64_t kPartExtent = 128, kPartMultiple = 48;

int64_t PartExtent(int64_t extent, int64_t operations) {
  const int64_t parts =
      std::clamp<int64_t>(operations / kOperationsPerPart, 1, std::max<int64_t>(1, extent / kPartExtent));
  const int64_t even = (extent + parts - 1) / parts;
  return parts == 1 ? extent : (even + kPartMultiple - 1) / kPartMultiple * kPartMultiple;
}

// Splits the longer side of c.
void FloatGemm(const DeviceGemm& g, const float* a, const float* b, bool add, float* c) {
  const int64_t m = g.m, n = g.n, k = g.k;
  const bool a_transposed = g.transpose_a == Transpose::kYes, b_transposed = g.transpose_b == Transpose::kYes;
  const MatrixOperand whole_a = {a, a_transposed ? m : k, a_transposed};
  const MatrixOperand whole_b = {b, b_transposed ? k : n, b_transposed};
  const int64_t operations = 2 * m * n * k;
  if (m >= n) {
    ParallelForRanges(m, PartExtent(m, operations), [&](int64_t begin, int64_t end) {
      MatrixOperand part = whole_a;
      part.data += a_transposed ? begin : begin * k;
      Math().gemm(end - begin, n, k, 1.0f, part, whole_b, c + begin * n, n, add);
    });
  } else {
    ParallelForRanges(n, PartExtent(n, operations), [&](int64_t begin, int64_t end) {
      MatrixOperand part = whole_b;
      part.data += b_transposed ? begin * k : begin;
      Math().gemm(m, end - begin, k, 1.0f, whole_a, part, c + begin, n, add);
    });
  }
}

// An operand as floats: itself, or converted into memory that `copy` then owns.
template <class T>
const float* AsFloats(const T* data, int64_t count, std::unique_ptr<float[]>& copy) {
  if constexpr (std::is_same_v<T, float>) {
    return data;
  } else {
    copy = Floats(count);
    ParallelForRanges(count, kGrain,
                      [&](int64_t begin, int64_t end) { Load(data + begin, end - begin, copy.get() + begin); });
    return copy.get();
  }
}

template <class T, class C>
void HostGemm(const DeviceGemm& g) {
  if (g.m == 0 || g.n == 0) return;
  std::unique_ptr<float[]> a_copy, b_copy;
  const float* const a = AsFloats(g.a.as<T>(), g.m * g.k, a_copy);
  const float* const b = AsFloats(g.b.as<T>(), g.k * g.n, b_copy);
  C* const c = g.c.as<C>();
  if constexpr (std::is_same_v<C, float>) {
    FloatGemm(g, a, b, g.c.add(), c);
  } else {
    const std::unique_ptr<float[]> product = Floats(g.m * g.n);
    FloatGemm(g, a, b, /*add=*/false, product.get());
    ParallelForRanges(g.m * g.n, kGrain, [&](int64_t begin, int64_t end) {
      Store(product.get() + begin, end - begin, g.c.mode, c + begin);
    });
  }
}

}  // namespace

template <KernelElement T, GradientElement<T> C>
absl::Status Gemm(Stream stream, TensorView<const T> a, Transpose transpose_a, TensorView<const T> b,
                  Transpose transpose_b, WriteMode mode, TensorView<C> c) {
  const bool a_transposed = transpose_a == Transpose::kYes, b_transposed = transpose_b == Transpose::kYes;
  const int64_t m = a_transposed ? Columns(a) : Rows(a), k = a_transposed ? Rows(a) : Columns(a);
  const int64_t n = b_transposed ? Rows(b) : Columns(b);
  REPRISE_RETURN_IF_ERROR(
      Checks("Gemm")
          .Present("a", a)
          .Present("b", b)
          .Present("c", c)
          .Equal("columns of a as used", k, "rows of b as used", b_transposed ? Columns(b) : Rows(b))
          .Equal("rows of c", Rows(c), "rows of a as used", m)
          .Equal("columns of c", Columns(c), "columns of b as used", n)
          .Done());
  return Enqueue(stream, &DeviceKernels::Gemm,
                 {m, n, k, InputOf(a), transpose_a, InputOf(b), transpose_b, OutputOf(c, mode)}, HostGemm<T, C>);
}

#define REPRISE_INSTANTIATE(T, C)                                                                                     \
  template absl::Status Gemm<T, C>(Stream, TensorView<const T>, Transpose, TensorView<const T>, Transpose, WriteMode, \
                                   TensorView<C>);
REPRISE_FOR_ACTIVATION_AND_GRADIENT(REPRISE_INSTANTIATE)
#undef REPRISE_INSTANTIATE

}  // namespace reprise::kernels
