// The arithmetic that is worth building for several instruction sets; all of it serial and on float.
#ifndef REPRISE_KERNELS_HOST_MATH_H_
#define REPRISE_KERNELS_HOST_MATH_H_

#include <cstdint>

namespace reprise::kernels {

// A row-major matrix with `stride` elements from row to row; `transposed`: the operand is its transpose.
struct MatrixOperand {
  const float* data;
  int64_t stride;
  bool transposed;
};

// One instruction set's functions. A NaN in any input that a result depends on makes the result NaN.
struct HostMath {
  // c [m,n] = alpha * a [m,k] * b [k,n], or c += if `add`; otherwise c is not read.
  void (*gemm)(int64_t m, int64_t n, int64_t k, float alpha, MatrixOperand a, MatrixOperand b, float* c,
               int64_t c_stride, bool add);
  float (*dot)(const float* a, const float* b, int64_t n);
  // n > 0. A NaN may be ignored.
  float (*max)(const float* x, int64_t n);
  // y = exp(x - shift), zero below exp(-87) so that no denormal numbers appear; returns the sum. y may be x.
  float (*exp_and_sum)(const float* x, float shift, float* y, int64_t n);
  // y = gelu(x), tanh form. y may be x.
  void (*gelu)(const float* x, float* y, int64_t n);
  // dx = dy * gelu'(x). dx may be dy or x.
  void (*gelu_backward)(const float* dy, const float* x, float* dx, int64_t n);
  // Gradient of a softmax row with probabilities p: ds = scale * p * (dp - dot(p, dp)). ds may be dp.
  void (*softmax_backward)(const float* p, const float* dp, float scale, float* ds, int64_t n);
};

// For the best instruction set that this machine has.
const HostMath& Math();

extern const HostMath kBaselineMath, kAvx2Math, kAvx512Math;

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_HOST_MATH_H_
