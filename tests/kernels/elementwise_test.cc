// AddBias, GeluTanh, Relu, Add and AddPositions.
#include <functional>

#include "reprise/kernels/activations.h"
#include "reprise/kernels/bias.h"
#include "reprise/kernels/embedding.h"
#include "reprise/kernels/residual.h"
#include "tests/kernels/kernel_testing.h"

namespace reprise::kernels {
namespace {

const Shape kShapes[] = {{1}, {7}, {9, 7}, {63, 65}, {0, 5}, {5, 0}, {2, 3, 1031}};

double ReluReference(double x) { return x > 0 ? x : 0; }

template <class D>
class ElementwiseTest : public testing::Test {};
TYPED_TEST_SUITE(ElementwiseTest, AllDtypes);

TYPED_TEST(ElementwiseTest, GeluTanh) {
  using T = typename TypeParam::Activation;
  for (const Shape& shape : kShapes) {
    const Tensor<T> x = Random<T>(shape, 1, 8), dy = Random<T>(shape, 2);
    Tensor<T> y(shape);
    ASSERT_EQ(GeluTanh(HostStream(), x.input(), y.view()), absl::OkStatus());
    ExpectNear<T>(Map(x.values(), GeluReference), y.values(), GeluError(8));
    const Values dx = WrittenGradient<T>(
        shape, [&](Gradient<T> dx) { return GeluTanhBackward(HostStream(), dy.input(), x.input(), dx); });
    ExpectGradient<T>([&](const Values& v) { return Dot(Map(v, GeluReference), dy.values()); }, x.values(), dx,
                      GeluError(8));
  }
}

TEST(GeluTanhTest, IsRightAtTheEndsAndKeepsNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  Tensor<float> x({6}), y({6}), dy({6}, 1), dx({6});
  x.data = {0, 1e30f, -1e30f, 30, -30, infinity - infinity};
  ASSERT_EQ(GeluTanh(HostStream(), x.view(), y.view()), absl::OkStatus());
  EXPECT_THAT(std::vector<float>(y.data.begin(), y.data.end() - 1),
              testing::ElementsAre(0, 1e30f, testing::FloatNear(0, 1e-5), 30, testing::FloatNear(0, 1e-30)));
  EXPECT_TRUE(std::isnan(y.data[5]));
  ASSERT_EQ(GeluTanhBackward(HostStream(), dy.view(), x.view(), dx.gradient(WriteMode::kAssign)), absl::OkStatus());
  EXPECT_THAT(std::vector<float>(dx.data.begin(), dx.data.end() - 1),
              testing::ElementsAre(0.5f, 1, testing::FloatNear(0, 1e-30), 1, testing::FloatNear(0, 1e-30)));
  EXPECT_TRUE(std::isnan(dx.data[5]));
}

TYPED_TEST(ElementwiseTest, Relu) {
  using T = typename TypeParam::Activation;
  for (const Shape& shape : kShapes) {
    Tensor<T> x = Random<T>(shape, 1), y(shape);
    const Tensor<T> dy = Random<T>(shape, 2);
    // The function has a corner at 0, where differences say nothing.
    for (T& v : x.data) v = static_cast<T>(float(v) + (float(v) > 0 ? 0.01f : -0.01f));
    ASSERT_EQ(Relu(HostStream(), x.input(), y.view()), absl::OkStatus());
    EXPECT_EQ(Map(x.values(), ReluReference), y.values());
    const Values dx = WrittenGradient<T>(
        shape, [&](Gradient<T> dx) { return ReluBackward(HostStream(), dy.input(), x.input(), dx); });
    ExpectGradient<T>([&](const Values& v) { return Dot(Map(v, ReluReference), dy.values()); }, x.values(), dx, 0);
  }
}

TEST(ReluTest, GradientAtZeroIsZeroAndNanStays) {
  Tensor<float> x({2}), y({2}), dy({2}, 1), dx({2});
  x.data = {0, std::numeric_limits<float>::quiet_NaN()};
  ASSERT_EQ(Relu(HostStream(), x.view(), y.view()), absl::OkStatus());
  ASSERT_EQ(ReluBackward(HostStream(), dy.view(), x.view(), dx.gradient(WriteMode::kAssign)), absl::OkStatus());
  EXPECT_EQ(dx.data[0], 0);
  EXPECT_EQ(y.data[0], 0);
  EXPECT_TRUE(std::isnan(y.data[1]));
}

TYPED_TEST(ElementwiseTest, Add) {
  using T = typename TypeParam::Activation;
  for (const Shape& shape : kShapes) {
    const Tensor<T> a = Random<T>(shape, 1), b = Random<T>(shape, 2);
    Tensor<T> y(shape), db(shape);
    ASSERT_EQ(Add(HostStream(), a.input(), b.input(), y.view()), absl::OkStatus());
    Values want = a.values();
    const Values b_values = b.values();
    std::transform(want.begin(), want.end(), b_values.begin(), want.begin(), std::plus<>());
    ExpectNear<T>(want, y.values(), 0x1p-23);
    const Values da = WrittenGradient<T>(shape, [&](Gradient<T> da) {
      return AddBackward(HostStream(), a.input(), da, db.gradient(WriteMode::kAssign));
    });
    EXPECT_EQ(da, a.values());
    EXPECT_EQ(db.values(), a.values());
  }
}

// y = x + table[row mod rows of table used].
Values AddRows(const Values& x, const Values& table, int64_t width, int64_t period) {
  Values y = x;
  for (size_t i = 0; i < y.size(); ++i) y[i] += table[i / width % period * width + i % width];
  return y;
}

TYPED_TEST(ElementwiseTest, AddBias) {
  using T = typename TypeParam::Activation;
  using G = typename TypeParam::ParameterGradient;
  for (const Shape& shape : {Shape{1}, Shape{7, 3}, Shape{5, 13, 17}, Shape{350, 96}, Shape{0, 5}}) {
    const int64_t width = shape.back(), rows = NumElements(shape) / width;
    const Tensor<T> x = Random<T>(shape, 1), bias = Random<T>({width}, 2), dy = Random<T>(shape, 3);
    Tensor<T> y(shape);
    ASSERT_EQ(AddBias(HostStream(), x.input(), bias.input(), y.view()), absl::OkStatus());
    ExpectNear<T>(AddRows(x.values(), bias.values(), width, 1), y.values(), 0x1p-23);
    const Values dbias = WrittenGradient<G>(
        {width}, [&](Gradient<G> dbias) { return AddBiasBackward(HostStream(), dy.input(), Gradient<T>(), dbias); });
    ExpectGradient<G>([&](const Values& v) { return Dot(AddRows(x.values(), v, width, 1), dy.values()); },
                      bias.values(), dbias, SumError(rows));
    EXPECT_EQ(WrittenGradient<T>(
                  shape, [&](Gradient<T> dx) { return AddBiasBackward(HostStream(), dy.input(), dx, Gradient<G>()); }),
              dy.values());
  }
}

TYPED_TEST(ElementwiseTest, AddPositions) {
  using T = typename TypeParam::Activation;
  using G = typename TypeParam::ParameterGradient;
  for (const Shape& shape : {Shape{1, 1, 1}, Shape{3, 5, 7}, Shape{5, 7}, Shape{0, 5, 7}, Shape{3, 64, 33}}) {
    const int64_t time = shape[shape.size() - 2], width = shape.back(), context = time + 3;
    const int64_t sequences = NumElements(shape) / (time * width);
    const Tensor<T> x = Random<T>(shape, 1), table = Random<T>({context, width}, 2), dy = Random<T>(shape, 3);
    Tensor<T> y(shape);
    ASSERT_EQ(AddPositions(HostStream(), x.input(), table.input(), y.view()), absl::OkStatus());
    ExpectNear<T>(AddRows(x.values(), table.values(), width, time), y.values(), 0x1p-23);
    const Values dtable = WrittenGradient<G>(table.shape, [&](Gradient<G> dtable) {
      return AddPositionsBackward(HostStream(), dy.input(), Gradient<T>(), dtable);
    });
    ExpectGradient<G>([&](const Values& v) { return Dot(AddRows(x.values(), v, width, time), dy.values()); },
                      table.values(), dtable, SumError(sequences));
    EXPECT_EQ(
        WrittenGradient<T>(
            shape, [&](Gradient<T> dx) { return AddPositionsBackward(HostStream(), dy.input(), dx, Gradient<G>()); }),
        dy.values());
  }
}

TEST(ElementwiseShapeTest, RefusesShapesThatDoNotFit) {
  Tensor<float> a({2, 3}), b({2, 4}), bias({5}), table({1, 3});
  const Stream stream = HostStream();
  ExpectInvalid(Add(stream, a.view(), b.view(), a.view()), {"Add", "b: [2,4]", "a: [2,3]"});
  ExpectInvalid(AddBackward(stream, a.view(), Gradient<float>(), b.gradient(WriteMode::kAdd)), {"db: [2,4]", "[2,3]"});
  ExpectInvalid(GeluTanh(stream, a.view(), b.view()), {"GeluTanh", "y: [2,4]", "x: [2,3]"});
  ExpectInvalid(Relu(stream, a.view(), b.view()), {"Relu", "y: [2,4]", "x: [2,3]"});
  ExpectInvalid(ReluBackward(stream, a.view(), b.view(), b.gradient(WriteMode::kAdd)), {"dy: [2,3]", "x: [2,4]"});
  ExpectInvalid(AddBias(stream, a.view(), bias.view(), a.view()), {"elements of bias: 5", "columns of x: 3"});
  ExpectInvalid(AddPositions(stream, a.view(), table.view(), a.view()), {"rows of table: 1", "at least 2"});
  ExpectInvalid(AddBiasBackward(stream, a.view(), Gradient<float>(), bias.gradient(WriteMode::kAssign)),
                {"AddBiasBackward", "elements of dbias: 5", "columns of dy: 3"});
  ExpectInvalid(AddBiasBackward(stream, a.view(), b.gradient(WriteMode::kAdd), Gradient<float>()),
                {"AddBiasBackward", "dx: [2,4]", "dy: [2,3]"});
  ExpectInvalid(AddPositionsBackward(stream, a.view(), Gradient<float>(), table.gradient(WriteMode::kAssign)),
                {"AddPositionsBackward", "rows of dtable: 1", "at least 2"});
  ExpectInvalid(GeluTanhBackward(stream, a.view(), b.view(), b.gradient(WriteMode::kAdd)),
                {"GeluTanhBackward", "dy: [2,3]", "x: [2,4]"});
  ExpectInvalid(Add(stream, a.view(), TensorView<float>(), a.view()), {"b is empty"});
}

}  // namespace
}  // namespace reprise::kernels
