// The body of HostMath for the instruction set that the including source is compiled for. That source defines Eigen as
// a name of its own first: two builds of one Eigen template under one name would be one function to the linker, which
// could then keep the one that this machine cannot run. For the same reason only Eigen and functions of this file are
// called here, nothing inline of the standard library's that the optimiser might leave out of line.
#ifndef Eigen
#error "define Eigen as a name of this instruction set's own"
#endif
#define EIGEN_NO_DEBUG
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>

#include "kernels/host_math.h"

namespace reprise::kernels {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMatrixMap = Eigen::Map<const Matrix, Eigen::Unaligned, Eigen::OuterStride<>>;
using MatrixMap = Eigen::Map<Matrix, Eigen::Unaligned, Eigen::OuterStride<>>;

template <class A, class B>
void Multiply(float alpha, const A& a, const B& b, MatrixMap c, bool add) {
  if (add) {
    c.noalias() += (alpha * a) * b;
  } else {
    c.noalias() = (alpha * a) * b;
  }
}

void Gemm(int64_t m, int64_t n, int64_t k, float alpha, MatrixOperand a, MatrixOperand b, float* c, int64_t c_stride,
          bool add) {
  const ConstMatrixMap am(a.data, a.transposed ? k : m, a.transposed ? m : k, Eigen::OuterStride<>(a.stride));
  const ConstMatrixMap bm(b.data, b.transposed ? n : k, b.transposed ? k : n, Eigen::OuterStride<>(b.stride));
  const MatrixMap cm(c, m, n, Eigen::OuterStride<>(c_stride));
  if (a.transposed && b.transposed) return Multiply(alpha, am.transpose(), bm.transpose(), cm, add);
  if (a.transposed) return Multiply(alpha, am.transpose(), bm, cm, add);
  if (b.transposed) return Multiply(alpha, am, bm.transpose(), cm, add);
  Multiply(alpha, am, bm, cm, add);
}

// Sums in lanes of a fixed number. Eigen's own sum over a map starts at the first aligned element, so that its order
// and result would depend on the address.
using Lanes = Eigen::Array<float, 32, 1>;
using ConstLanesMap = Eigen::Map<const Lanes>;

float Sum(const float* x, int64_t n) {
  Lanes lanes = Lanes::Zero();
  int64_t i = 0;
  for (; i + Lanes::SizeAtCompileTime <= n; i += Lanes::SizeAtCompileTime) lanes += ConstLanesMap(x + i);
  float sum = lanes.sum();
  for (; i < n; ++i) sum += x[i];
  return sum;
}

float Dot(const float* a, const float* b, int64_t n) {
  Lanes lanes = Lanes::Zero();
  int64_t i = 0;
  for (; i + Lanes::SizeAtCompileTime <= n; i += Lanes::SizeAtCompileTime) {
    lanes += ConstLanesMap(a + i) * ConstLanesMap(b + i);
  }
  float sum = lanes.sum();
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

float Max(const float* x, int64_t n) { return Eigen::Map<const Eigen::ArrayXf>(x, n).maxCoeff(); }

// exp(x) between -87 and 87, 0 below, exp(87) above: no branch, so that loops over it vectorise, and neither the result
// nor its reciprocal is denormal. Relative
// error at most 2^-22 (tests: HostMathTest). Splits x = n ln 2 + r with |r| <= ln(2) / 2, then a Taylor polynomial.
inline float Exp(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves an integer in the low bits
  const float clamped = x > 87.0f ? 87.0f : x;
  const float rounded = clamped * 1.44269504f + kRound;
  const float n = rounded - kRound;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const uint32_t power = (__builtin_bit_cast(uint32_t, rounded) << 23) + (127u << 23);
  const float result = p * __builtin_bit_cast(float, power);
  return clamped < -87.0f ? 0.0f : result;
}

float ExpAndSum(const float* x, float shift, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = Exp(x[i] - shift);
  return Sum(y, n);
}

// gelu(x) = x s(x), where s(x) = (1 + tanh u) / 2 = 1 / (1 + exp(-2u)) and u = kScale (x + kCubic x^3). Beyond 16, s is
// 0 or 1 to all digits; the bound keeps x^3 finite.
constexpr float kScale = 0.797884561f;  // sqrt(2 / pi)
constexpr float kCubic = 0.044715f;
inline float Bounded(float x) { return x > 16.0f ? 16.0f : x < -16.0f ? -16.0f : x; }
inline float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-2.0f * kScale * x * (1.0f + kCubic * x * x))); }

void Gelu(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * Sigmoid(Bounded(x[i]));
}

void GeluBackward(const float* dy, const float* x, float* dx, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float b = Bounded(x[i]);
    const float s = Sigmoid(b);
    dx[i] = dy[i] * (s + 2.0f * kScale * b * s * (1.0f - s) * (1.0f + 3.0f * kCubic * b * b));
  }
}

void SoftmaxBackward(const float* p, const float* dp, float scale, float* ds, int64_t n) {
  const float dot = Dot(p, dp, n);
  for (int64_t i = 0; i < n; ++i) ds[i] = scale * p[i] * (dp[i] - dot);
}

constexpr HostMath kMath = {Gemm, Dot, Max, ExpAndSum, Gelu, GeluBackward, SoftmaxBackward};

}  // namespace
}  // namespace reprise::kernels
