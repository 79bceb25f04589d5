// Arithmetic on values with bounds. Each operation says by how much one in float32 may differ whose operands are within
// theirs:
//
//   product           |a| e_b + e_a |b| + e_a e_b + 2u (|a| + e_a) (|b| + e_b)            u = 2^-24
//   sum of products   as SumOfProducts
//   f(x), smooth      |f'(x)| e + max|f''| e^2 / 2 + the rounding of f
//   softmax p         p (exp(2e) - 1) + (4 max|s| + n + 16) u (p + 1), where e bounds the errors of its n scores s
//   result            + the rounding to its dtype
#ifndef REPRISE_TESTS_GRAPH_NETS_ARITHMETIC_H_
#define REPRISE_TESTS_GRAPH_NETS_ARITHMETIC_H_

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/graph/approximate.h"

namespace reprise::testing {

inline constexpr double kUnit = 0x1p-24;
using Values = std::vector<Approximate>;

inline Approximate Product(const Approximate& a, const Approximate& b) {
  const double magnitude = Magnitude(a) * Magnitude(b), value = a.value * b.value;
  return {value, magnitude - std::abs(value) + 2 * kUnit * magnitude};
}
inline Approximate Sum(const Approximate& a, const Approximate& b) {
  return {a.value + b.value, a.error + b.error + kUnit * (Magnitude(a) + Magnitude(b))};
}
inline Approximate Negated(const Approximate& a) { return {-a.value, a.error}; }
// One rounding of a constant and one of the product.
inline Approximate Times(const Approximate& a, double factor) { return Product(a, {factor, std::abs(factor) * kUnit}); }

// 1 + tanh cancels where x is negative: its rounding is absolute. Arguments of tanh come of at most 6 roundings, and
// z (1 - tanh^2(z)) < 0.45 bounds what they change; a tanh good to 4 units makes 16 in all.
inline constexpr double kGeluRounding = 16 * kUnit;
inline double GeluInner(double x) { return std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }
inline double GeluSlope(double x) {
  const double t = std::tanh(GeluInner(x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}
// |gelu''| and |gelu'''| are below 1 and 2 everywhere.
inline Approximate Gelu(const Approximate& x) {
  return {0.5 * x.value * (1 + std::tanh(GeluInner(x.value))),
          std::abs(GeluSlope(x.value)) * x.error + x.error * x.error / 2 + kGeluRounding * Magnitude(x)};
}
inline Approximate GeluDerivative(const Approximate& x) {
  return {GeluSlope(x.value), std::min(x.error, 2.5) + 2 * kGeluRounding};
}

// 1 / sqrt(s), where s computed is at least `least`: convex, so that the lower end of s is the farthest.
inline Approximate InverseRoot(const Approximate& s, double least) {
  const double value = 1 / std::sqrt(s.value), largest = 1 / std::sqrt(std::max(s.value - s.error, least));
  return {value, largest - value + 4 * kUnit * largest};
}

inline Values Softmax(const Values& scores) {
  double error = 0, largest = 0, total = 0, top = scores[0].value;
  for (const Approximate& s : scores) {
    error = std::max(error, s.error);
    largest = std::max(largest, Magnitude(s));
    top = std::max(top, s.value);
  }
  for (const Approximate& s : scores) total += std::exp(s.value - top);
  const double roundings = (4 * largest + static_cast<double>(scores.size()) + 16) * kUnit;
  Values softmax;
  for (const Approximate& s : scores) {
    const double p = std::exp(s.value - top) / total;
    // Both p and what is computed lie between 0 and 1.
    softmax.push_back({p, std::min(1.0, p * std::expm1(2 * error)) + roundings * (p + 1)});
  }
  return softmax;
}

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_NETS_ARITHMETIC_H_
