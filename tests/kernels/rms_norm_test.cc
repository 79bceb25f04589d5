#include <limits>

#include "reprise/kernels/rms_norm.h"

#include "tests/kernels/kernel_testing.h"

namespace reprise::kernels {
namespace {

constexpr float kRmsEpsilon = 1e-3f;

Values Reference(const Values& x, const Values& gain) {
  const size_t width = gain.size();
  Values y(x.size());
  for (size_t row = 0; row < x.size(); row += width) {
    double sum = 0;
    for (size_t c = 0; c < width; ++c) sum += x[row + c] * x[row + c];
    const double factor = 1 / std::sqrt(sum / width + kRmsEpsilon);
    for (size_t c = 0; c < width; ++c) y[row + c] = x[row + c] * factor * gain[c];
  }
  return y;
}

template <class D>
class RmsNormTest : public testing::Test {};
TYPED_TEST_SUITE(RmsNormTest, AllDtypes);

TYPED_TEST(RmsNormTest, ForwardAndGradients) {
  using T = typename TypeParam::Activation;
  using G = typename TypeParam::ParameterGradient;
  for (const Shape& shape : {Shape{1, 1}, Shape{7}, Shape{3, 5, 63}, Shape{65, 127}, Shape{0, 5}}) {
    const int64_t width = shape.back(), rows = NumElements(shape) / width;
    const Tensor<T> x = Random<T>(shape, 1), gain = Random<T>({width}, 2), dy = Random<T>(shape, 3);
    Tensor<T> y(shape);
    ASSERT_EQ(RmsNorm(HostStream(), x.input(), gain.input(), y.view(), kRmsEpsilon), absl::OkStatus());
    // The factor's relative error is that of the sum of squares; factors are at most 1 / sqrt(epsilon).
    const double error = SumError(width) / width / std::sqrt(kRmsEpsilon);
    ExpectNear<T>(Reference(x.values(), gain.values()), y.values(), error);

    const auto loss = [&](const Values& x, const Values& gain) { return Dot(Reference(x, gain), dy.values()); };
    const Values dx = WrittenGradient<T>(shape, [&](Gradient<T> dx) {
      return RmsNormBackward(HostStream(), dy.input(), x.input(), gain.input(), kRmsEpsilon, dx, Gradient<G>());
    });
    ExpectGradient<T>([&](const Values& v) { return loss(v, gain.values()); }, x.values(), dx,
                      4 * error / std::sqrt(kRmsEpsilon));
    const Values dgain = WrittenGradient<G>({width}, [&](Gradient<G> dgain) {
      return RmsNormBackward(HostStream(), dy.input(), x.input(), gain.input(), kRmsEpsilon, Gradient<T>(), dgain);
    });
    ExpectGradient<G>([&](const Values& v) { return loss(x.values(), v); }, gain.values(), dgain,
                      rows * error + SumError(rows, 2));
  }
}

TEST(RmsNormShapeTest, RefusesAGainOfAnotherWidth) {
  Tensor<float> x({2, 3}), gain({4});
  ExpectInvalid(RmsNorm(HostStream(), x.view(), gain.view(), x.view(), 1e-5f),
                {"RmsNorm", "elements of gain: 4", "columns of x: 3"});
  ExpectInvalid(RmsNormBackward(HostStream(), x.view(), x.view(), gain.view(), 1e-5f, x.gradient(WriteMode::kAdd),
                                gain.gradient(WriteMode::kAdd)),
                {"RmsNormBackward", "elements of gain: 4", "columns of x: 3"});
}

TEST(RmsNormShapeTest, RefusesAnEpsilonThatIsNoNumberFrom0On) {
  Tensor<float> x({2, 3}, 1), gain({3}, 1), y({2, 3});
  for (const float epsilon :
       {-1e-5f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    ExpectInvalid(RmsNorm(HostStream(), x.view(), gain.view(), y.view(), epsilon), {"RmsNorm", "epsilon: "});
    ExpectInvalid(RmsNormBackward(HostStream(), x.view(), x.view(), gain.view(), epsilon, x.gradient(WriteMode::kAdd),
                                  gain.gradient(WriteMode::kAdd)),
                  {"RmsNormBackward", "epsilon: "});
  }
  EXPECT_EQ(RmsNorm(HostStream(), x.view(), gain.view(), y.view(), 0), absl::OkStatus());
  EXPECT_EQ(y.data[5], 1);
}

}  // namespace
}  // namespace reprise::kernels
