#include "reprise/kernels/gemm.h"

#include "reprise/kernels/linear.h"
#include "reprise/kernels/linear_gelu.h"
#include "tests/kernels/kernel_testing.h"

namespace reprise::kernels {
namespace {

template <class D>
class GemmTest : public testing::Test {};
TYPED_TEST_SUITE(GemmTest, AllDtypes);

// a [m,k] times b [k,n], each transposed first where it is stored so.
Values Product(int64_t m, int64_t n, int64_t k, const Values& a, bool a_transposed, const Values& b,
               bool b_transposed) {
  Values c(m * n, 0.0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) {
        c[i * n + j] += a[a_transposed ? l * m + i : i * k + l] * b[b_transposed ? j * k + l : l * n + j];
      }
    }
  }
  return c;
}

struct Extents {
  int64_t m, n, k;
};
const Extents kExtents[] = {{1, 1, 1}, {7, 1, 3}, {1, 7, 63},     {63, 65, 7},    {65, 63, 127}, {0, 5, 3},
                            {5, 0, 3}, {4, 3, 0}, {13, 211, 101}, {300, 96, 601}, {96, 300, 601}};

TYPED_TEST(GemmTest, MultipliesAllTransposesAndModes) {
  using T = typename TypeParam::Activation;
  using C = typename TypeParam::ParameterGradient;
  uint64_t seed = 0;
  for (const auto& [m, n, k] : kExtents) {
    // Large enough to be split; how is the same for all dtypes.
    if (m * n * k > 5'000'000 && !std::is_same_v<T, float>) continue;
    for (const Transpose ta : {Transpose::kNo, Transpose::kYes}) {
      for (const Transpose tb : {Transpose::kNo, Transpose::kYes}) {
        const bool at = ta == Transpose::kYes, bt = tb == Transpose::kYes;
        const Tensor<T> a = Random<T>(at ? Shape{k, m} : Shape{m, k}, ++seed);
        const Tensor<T> b = Random<T>(bt ? Shape{n, k} : Shape{k, n}, ++seed);
        const Values got = WrittenGradient<C>({m, n}, [&, ta = ta, tb = tb](Gradient<C> c) {
          return Gemm<T, C>(HostStream(), a.input(), ta, b.input(), tb, c.mode, c);
        });
        ExpectNear<C>(Product(m, n, k, a.values(), at, b.values(), bt), got, SumError(k));
      }
    }
  }
}

TYPED_TEST(GemmTest, LinearActsOnTheLastDimension) {
  using T = typename TypeParam::Activation;
  const Tensor<T> x = Random<T>({3, 5, 7}, 1), w = Random<T>({11, 7}, 2);
  Tensor<T> y({3, 5, 11});
  ASSERT_EQ(Linear(HostStream(), x.input(), w.input(), y.view()), absl::OkStatus());
  ExpectNear<T>(Product(15, 11, 7, x.values(), false, w.values(), true), y.values(), SumError(7));
}

TYPED_TEST(GemmTest, LinearBackwardIsTheGradient) {
  using T = typename TypeParam::Activation;
  using G = typename TypeParam::ParameterGradient;
  for (const auto& [m, n, k] : {Extents{1, 1, 1}, Extents{6, 7, 5}, Extents{63, 17, 33}}) {
    const Tensor<T> x = Random<T>({m, k}, 1), w = Random<T>({n, k}, 2), dy = Random<T>({m, n}, 3);
    const auto loss = [&, m = m, n = n, k = k](const Values& x, const Values& w) {
      return Dot(Product(m, n, k, x, false, w, true), dy.values());
    };
    const Values dx = WrittenGradient<T>(x.shape, [&](Gradient<T> dx) {
      return LinearBackward(HostStream(), dy.input(), x.input(), w.input(), dx, Gradient<G>());
    });
    ExpectGradient<T>([&](const Values& v) { return loss(v, w.values()); }, x.values(), dx, SumError(n));
    const Values dw = WrittenGradient<G>(w.shape, [&](Gradient<G> dw) {
      return LinearBackward(HostStream(), dy.input(), x.input(), w.input(), Gradient<T>(), dw);
    });
    ExpectGradient<G>([&](const Values& v) { return loss(x.values(), v); }, w.values(), dw, SumError(m));
  }
}

const Extents kGeluExtents[] = {{1, 1, 1}, {6, 7, 5},  {0, 5, 3},    {5, 0, 3},
                                {4, 3, 0}, {8, 16, 8}, {63, 17, 33}, {96, 64, 33}};

TYPED_TEST(GemmTest, LinearGeluKeepsWhatGeluReads) {
  using T = typename TypeParam::Activation;
  for (const auto& [m, n, k] : kGeluExtents) {
    const Tensor<T> x = Random<T>({m, k}, 1), w = Random<T>({n, k}, 2, 2);
    Tensor<T> h({m, n}), y({m, n});
    ASSERT_EQ(LinearGelu(HostStream(), x.input(), w.input(), h.view(), y.view()), absl::OkStatus());
    const Values want = Product(m, n, k, x.values(), false, w.values(), true);
    const double error = SumError(k, 2), largest = Largest(want) + error;
    ExpectNear<T>(want, h.values(), error);
    ExpectNear<T>(Map(want, GeluReference), y.values(),
                  GeluError(largest) + kGeluSlope * (error + Epsilon<T>() * largest));
  }
}

TYPED_TEST(GemmTest, GeluLinearBackwardIsTheGradient) {
  using T = typename TypeParam::Activation;
  for (const auto& [m, n, k] : kGeluExtents) {
    const Tensor<T> h = Random<T>({m, k}, 1, 4), w = Random<T>({n, k}, 2), dy = Random<T>({m, n}, 3);
    Tensor<T> dh({m, k});
    ASSERT_EQ(GeluLinearBackward(HostStream(), dy.input(), h.input(), w.input(), dh.view()), absl::OkStatus());
    const double error = SumError(n);
    const double largest = Largest(Product(m, k, n, dy.values(), false, w.values(), false)) + error;
    ExpectGradient<T>(
        [&, m = m, n = n, k = k](const Values& v) {
          return Dot(Product(m, n, k, Map(v, GeluReference), false, w.values(), true), dy.values());
        },
        h.values(), dh.values(), GeluError(4) * largest + kGeluSlope * (error + Epsilon<T>() * largest));
  }
}

TEST(LinearGeluTest, ActsOnTheLastDimension) {
  Tensor<float> x = Random<float>({2, 3, 5}, 1), w = Random<float>({7, 5}, 2), dy = Random<float>({2, 3, 5}, 3);
  Tensor<float> h({2, 3, 7}), y({2, 3, 7}), dh({2, 3, 7}), h_only({2, 3, 7});
  const Tensor<float> down = Random<float>({5, 7}, 4);
  ASSERT_EQ(LinearGelu(HostStream(), x.input(), w.input(), h.view(), y.view()), absl::OkStatus());
  ASSERT_EQ(Linear(HostStream(), x.input(), w.input(), h_only.view()), absl::OkStatus());
  EXPECT_EQ(h.data, h_only.data);
  ASSERT_EQ(GeluLinearBackward(HostStream(), dy.input(), h.input(), down.input(), dh.view()), absl::OkStatus());
}

TEST(LinearGeluTest, RefusesShapesThatDoNotFitNamingBothNumbers) {
  Tensor<float> x({2, 3}), w({5, 3}), h({2, 5}), wide({2, 6}), dy({2, 7}), down({7, 5}), x4({2, 4});
  const Stream s = HostStream();
  ExpectInvalid(LinearGelu(s, x4.view(), w.view(), h.view(), h.view()),
                {"LinearGelu", "columns of x: 4", "columns of w: 3"});
  ExpectInvalid(LinearGelu(s, x.view(), w.view(), wide.view(), h.view()), {"columns of h: 6", "rows of w: 5"});
  ExpectInvalid(LinearGelu(s, x.view(), w.view(), h.view(), wide.view()), {"y: [2,6]", "h: [2,5]"});
  ExpectInvalid(LinearGelu(s, x.view(), w.view(), TensorView<float>(), h.view()), {"h is empty"});
  ExpectInvalid(GeluLinearBackward(s, dy.view(), wide.view(), down.view(), wide.view()),
                {"GeluLinearBackward", "columns of h: 6", "columns of w: 5"});
  ExpectInvalid(GeluLinearBackward(s, x.view(), h.view(), down.view(), h.view()), {"columns of dy: 3", "rows of w: 7"});
  ExpectInvalid(GeluLinearBackward(s, dy.view(), h.view(), down.view(), wide.view()), {"dh: [2,6]", "h: [2,5]"});
}

TEST(LinearTest, RefusesShapesThatDoNotFitNamingBothNumbers) {
  Tensor<float> x({2, 63}), w({5, 64}), y({2, 5});
  ExpectInvalid(Linear(HostStream(), x.view(), w.view(), y.view()), {"Linear", "columns of x: 63", "columns of w: 64"});
  Tensor<float> x64({2, 64}), y6({2, 6}), y3({3, 5});
  ExpectInvalid(Linear(HostStream(), x64.view(), w.view(), y6.view()), {"columns of y: 6", "rows of w: 5"});
  ExpectInvalid(Linear(HostStream(), x64.view(), w.view(), y3.view()), {"rows of y: 3", "rows of x: 2"});
  ExpectInvalid(LinearBackward(HostStream(), y.view(), x64.view(), w.view(), x.gradient(WriteMode::kAssign),
                               w.gradient(WriteMode::kAssign)),
                {"LinearBackward", "dx: [2,63]", "x: [2,64]"});
}

TEST(LinearTest, RefusesAnEmptyViewByName) {
  Tensor<float> w({5, 64}), y({2, 5});
  ExpectInvalid(Linear(HostStream(), TensorView<float>(), w.view(), y.view()), {"Linear", "x is empty"});
}

TEST(GemmShapeTest, RefusesShapesThatDoNotFit) {
  Tensor<float> a({2, 3}), b({4, 5}), c({2, 5});
  ExpectInvalid((Gemm<float, float>(HostStream(), a.view(), Transpose::kNo, b.view(), Transpose::kNo,
                                    WriteMode::kAssign, c.view())),
                {"columns of a as used: 3", "rows of b as used: 4"});
}

}  // namespace
}  // namespace reprise::kernels
