// GEMM, the general product of two matrices.
#ifndef REPRISE_KERNELS_GEMM_H_
#define REPRISE_KERNELS_GEMM_H_

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "reprise/core/compute.h"
#include "reprise/kernels/arguments.h"

namespace reprise::kernels {

enum class Transpose : uint8_t { kNo, kYes };

// c = a b, or c += a b for WriteMode::kAdd: c[i,j] = or += the sum over l < k of a[i,l] b[l,j]. a [m, k], b [k, n] and
// c [m, n] as used: an operand marked Transpose::kYes is used transposed, so a is stored as [k, m], b as [n, k]. With
// k = 0 the sums are 0. Sums are in float; a sum that is added to BFloat16 may be rounded to it first.
// T: float or BFloat16; C: T or float.
template <KernelElement T, GradientElement<T> C>
absl::Status Gemm(Stream stream, TensorView<const T> a, Transpose transpose_a, TensorView<const T> b,
                  Transpose transpose_b, WriteMode mode, TensorView<C> c);
// The same for operands that could be written.
template <class A, class B, GradientElement<std::remove_const_t<A>> C>
requires KernelElement<std::remove_const_t<A>> && std::same_as<std::remove_const_t<A>, std::remove_const_t<B>>
    absl::Status Gemm(Stream stream, TensorView<A> a, Transpose transpose_a, TensorView<B> b, Transpose transpose_b,
                      WriteMode mode, TensorView<C> c) {
  using T = std::remove_const_t<A>;
  return Gemm<T, C>(stream, TensorView<const T>(a), transpose_a, TensorView<const T>(b), transpose_b, mode, c);
}

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_GEMM_H_
