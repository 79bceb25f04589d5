// The matrix product as kernels run it inside their own work. Private to the library.
#ifndef REPRISE_KERNELS_GEMM_HOST_H_
#define REPRISE_KERNELS_GEMM_HOST_H_

#include <cstdint>

#include "reprise/kernels/gemm.h"

namespace reprise::kernels {

// Dense row-major operands: c [m,n] = a [m,k] b [k,n]; `transpose` says that the operand is stored transposed.
template <class T>
struct HostOperand {
  const T* data;
  Transpose transpose;
};

// Instantiated for the element types of Gemm.
template <class T, class C>
void HostGemm(int64_t m, int64_t n, int64_t k, HostOperand<T> a, HostOperand<T> b, WriteMode mode, C* c);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_GEMM_HOST_H_
