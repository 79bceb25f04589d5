// Values of an oracle: in double, with a bound on how far from each one that is computed in narrower dtypes may be.
#ifndef REPRISE_TESTS_GRAPH_APPROXIMATE_H_
#define REPRISE_TESTS_GRAPH_APPROXIMATE_H_

#include <cmath>

#include "reprise/core/dtype.h"

namespace reprise::testing {

// Relative error of one rounding to the dtype.
double Epsilon(DType dtype);

struct Approximate {
  double value = 0;
  double error = 0;
};

inline double Magnitude(const Approximate& a) { return std::abs(a.value) + a.error; }

// A value stored as `dtype`.
inline Approximate Stored(const Approximate& a, DType dtype) {
  return {a.value, a.error + Epsilon(dtype) * Magnitude(a)};
}

// A sum of n products in float32, in any order:
//   error = sum(|a| e_b + e_a |b| + e_a e_b) + (n + 1) 2^-24 sum((|a| + e_a) (|b| + e_b)).
class SumOfProducts {
 public:
  void Add(const Approximate& a, const Approximate& b) {
    sum_.value += a.value * b.value;
    const double magnitude = Magnitude(a) * Magnitude(b);
    sum_.error += magnitude - std::abs(a.value * b.value);
    magnitude_ += magnitude;
    ++terms_;
  }
  Approximate sum() const { return {sum_.value, sum_.error + (terms_ + 1) * 0x1p-24 * magnitude_}; }

 private:
  Approximate sum_;
  double magnitude_ = 0;
  int terms_ = 0;
};

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_APPROXIMATE_H_
