// General matrix product.
#ifndef REPRISE_KERNELS_GEMM_H_
#define REPRISE_KERNELS_GEMM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/core/compute.h"
#include "reprise/kernels/arguments.h"

namespace reprise::kernels {

enum class Transpose : uint8_t { kNo, kYes };

// c = a b, or c += a b for WriteMode::kAdd; an operand marked Transpose::kYes is used transposed. Sums are in float;
// a sum that is added to BFloat16 may be rounded to it first.
// T: float or BFloat16; C: T or float.
template <class T, class C>
absl::Status Gemm(Stream stream, TensorView<const T> a, Transpose transpose_a, TensorView<const T> b,
                  Transpose transpose_b, WriteMode mode, TensorView<C> c);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_GEMM_H_
