// What the kernel tests share: tensors that own their memory, tolerances, and gradients by central differences.
#ifndef REPRISE_TESTS_KERNELS_KERNEL_TESTING_H_
#define REPRISE_TESTS_KERNELS_KERNEL_TESTING_H_

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/compute.h"
#include "reprise/core/stream.h"

namespace reprise::kernels {

using Values = std::vector<double>;

inline Stream HostStream() {
  static ImmediateHostQueue queue;
  return Stream(&queue);
}

template <class T>
struct Tensor {
  explicit Tensor(Shape shape_, float fill = std::numeric_limits<float>::quiet_NaN())
      : shape(std::move(shape_)), data(std::max<int64_t>(1, NumElements(shape)), static_cast<T>(fill)) {}
  int64_t size() const { return NumElements(shape); }
  TensorView<T> view() { return {data.data(), shape}; }
  TensorView<const T> input() const { return {data.data(), shape}; }
  Gradient<T> gradient(WriteMode mode) {
    Gradient<T> gradient;
    gradient.data = data.data();
    gradient.shape = shape;
    gradient.mode = mode;
    return gradient;
  }
  Values values() const {
    Values values(size());
    for (int64_t i = 0; i < size(); ++i) values[i] = static_cast<float>(data[i]);
    return values;
  }

  Shape shape;
  std::vector<T> data;
};

template <class T>
Tensor<T> Random(Shape shape, uint64_t seed, float bound = 1) {
  Tensor<T> tensor(std::move(shape));
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<float> uniform(-bound, bound);
  for (T& value : tensor.data) value = static_cast<T>(uniform(generator));
  return tensor;
}

inline Tensor<int32_t> RandomIds(Shape shape, int32_t count, uint64_t seed) {
  Tensor<int32_t> ids(std::move(shape), 0);
  std::mt19937_64 generator(seed);
  for (int32_t& id : ids.data) id = static_cast<int32_t>(generator() % count);
  return ids;
}

// Relative error of one rounding.
template <class T>
constexpr double Epsilon() {
  return std::is_same_v<T, float> ? 0x1p-24 : 0x1p-8;
}

// Error of a sum of `terms` products of size up to `magnitude`, in float and in any order.
inline double SumError(int64_t terms, double magnitude = 1) { return (terms + 2) * 0x1p-24 * terms * magnitude; }

// Each element of `got` is the element of `want`, but for the error of the arithmetic and one rounding to T.
template <class T>
void ExpectNear(const Values& want, const Values& got, double arithmetic_error) {
  ASSERT_EQ(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_LE(std::abs(got[i] - want[i]), arithmetic_error + Epsilon<T>() * (std::abs(want[i]) + arithmetic_error))
        << "element " << i << " is " << got[i] << " and should be " << want[i];
  }
}

// The gradient that `run` writes. Runs it twice: assigning to NaN, and adding to old values; expects the second result
// to be the first plus the old values.
template <class G>
Values WrittenGradient(const Shape& shape, const std::function<absl::Status(Gradient<G>)>& run) {
  Tensor<G> assigned(shape);
  EXPECT_EQ(run(assigned.gradient(WriteMode::kAssign)), absl::OkStatus());
  const Values gradient = assigned.values();
  Tensor<G> added = Random<G>(shape, 99, 4);
  Values want = added.values();
  for (size_t i = 0; i < want.size(); ++i) want[i] += gradient[i];
  EXPECT_EQ(run(added.gradient(WriteMode::kAdd)), absl::OkStatus());
  // In the second run the gradient was not rounded before it was added; the first run's was, once.
  double largest = 0;
  for (double g : gradient) largest = std::max(largest, std::abs(g));
  ExpectNear<G>(want, added.values(), Epsilon<G>() * largest + 0x1p-22 * (4 + largest));
  return gradient;
}

// Compares `got` with central differences of `function` at `at`: at all of its elements if they are few, else at some.
template <class G>
void ExpectGradient(const std::function<double(const Values&)>& function, Values at, const Values& got,
                    double arithmetic_error) {
  ASSERT_EQ(at.size(), got.size());
  ASSERT_TRUE(std::none_of(got.begin(), got.end(), [](double g) { return std::isnan(g); })) << "left unwritten";
  // Second-order formula: the error is step^2 times the third derivative, and rounding of the function over the step.
  constexpr double kStep = 0x1p-13;
  constexpr double kDifferenceError = 0x1p-20;
  std::mt19937_64 generator(7);
  const size_t count = at.size() <= 48 ? at.size() : 16;
  for (size_t n = 0; n < count; ++n) {
    const size_t i = count == at.size() ? n : generator() % at.size();
    const double x = at[i];
    at[i] = x + kStep;
    const double above = function(at);
    at[i] = x - kStep;
    const double below = function(at);
    at[i] = x;
    const double want = (above - below) / (2 * kStep);
    ASSERT_LE(std::abs(got[i] - want), kDifferenceError + arithmetic_error + Epsilon<G>() * std::abs(want))
        << "element " << i << " is " << got[i] << " and should be " << want;
  }
}

inline double Dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline double GeluReference(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
// Error of GELU and its slope on values up to `largest`: of the exponential and the few operations around it.
inline double GeluError(double largest) { return 8 * largest * 0x1p-23; }
// The largest slope of GELU is below this.
inline constexpr double kGeluSlope = 1.13;

inline Values Map(const Values& x, double (*function)(double)) {
  Values y(x.size());
  std::transform(x.begin(), x.end(), y.begin(), function);
  return y;
}
inline double Largest(const Values& values) {
  double largest = 0;
  for (double v : values) largest = std::max(largest, std::abs(v));
  return largest;
}

inline void ExpectInvalid(const absl::Status& status, const std::vector<std::string>& words) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  for (const std::string& word : words) {
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(word));
  }
}

// Activation and parameter gradient dtypes, for TYPED_TEST_SUITE.
template <class T, class G>
struct Dtypes {
  using Activation = T;
  using ParameterGradient = G;
};
using AllDtypes = testing::Types<Dtypes<float, float>, Dtypes<BFloat16, BFloat16>, Dtypes<BFloat16, float>>;

}  // namespace reprise::kernels

#endif  // REPRISE_TESTS_KERNELS_KERNEL_TESTING_H_
