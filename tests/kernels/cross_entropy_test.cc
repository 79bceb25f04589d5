#include "reprise/kernels/cross_entropy.h"

#include "tests/kernels/kernel_testing.h"

namespace reprise::kernels {
namespace {

double Reference(const Values& logits, const Tensor<int32_t>& labels, int64_t classes) {
  double loss = 0;
  for (int64_t r = 0; r < labels.size(); ++r) {
    double sum = 0;
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(logits[r * classes + c]);
    loss += std::log(sum) - logits[r * classes + labels.data[r]];
  }
  return loss / labels.size();
}

template <class T>
class CrossEntropyTest : public testing::Test {};
using ActivationDtypes = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(CrossEntropyTest, ActivationDtypes);

TYPED_TEST(CrossEntropyTest, LossAndGradient) {
  using T = TypeParam;
  for (const Shape& shape : {Shape{1, 1}, Shape{7, 3}, Shape{3, 5, 65}, Shape{63, 1021}}) {
    const int64_t classes = shape.back();
    const Tensor<T> logits = Random<T>(shape, 1, 6);
    const Tensor<int32_t> labels = RandomIds(Shape(shape.begin(), shape.end() - 1), static_cast<int32_t>(classes), 2);
    Tensor<float> loss({});
    ASSERT_EQ(CrossEntropy(HostStream(), logits.input(), labels.input(), loss.view()), absl::OkStatus());
    // exp is good to 2^-22; the sum's relative error is that of adding positive terms.
    const double relative = 0x1p-22 + classes * 0x1p-24;
    ExpectNear<float>({Reference(logits.values(), labels, classes)}, loss.values(), relative + 16 * 0x1p-24);

    const Tensor<float> dloss({}, 4);  // the loss scale
    const Values dlogits = WrittenGradient<T>(shape, [&](Gradient<T> dlogits) {
      return CrossEntropyBackward(HostStream(), dloss.input(), logits.input(), labels.input(), dlogits);
    });
    ExpectGradient<T>([&](const Values& v) { return 4 * Reference(v, labels, classes); }, logits.values(), dlogits,
                      4 * relative);
  }
}

TEST(CrossEntropyEdgeTest, LargeLogitsDoNotOverflow) {
  Tensor<float> logits({1, 3}), loss({});
  logits.data = {1e30f, -1e30f, 1e30f};
  Tensor<int32_t> labels({1}, 2);
  ASSERT_EQ(CrossEntropy(HostStream(), logits.input(), labels.input(), loss.view()), absl::OkStatus());
  EXPECT_FLOAT_EQ(loss.data[0], std::log(2.0f));
}

TEST(CrossEntropyEdgeTest, ALabelOutOfRangeMakesTheLossAndItsRowNan) {
  for (const int32_t bad : {-1, 3, std::numeric_limits<int32_t>::min()}) {
    const Tensor<float> logits = Random<float>({2, 3}, 1), dloss({}, 1);
    Tensor<int32_t> labels({2}, 1);
    labels.data[1] = bad;
    Tensor<float> loss({}, 0), dlogits({2, 3}, 0);
    ASSERT_EQ(CrossEntropy(HostStream(), logits.input(), labels.input(), loss.view()), absl::OkStatus());
    EXPECT_TRUE(std::isnan(loss.data[0]));
    ASSERT_EQ(CrossEntropyBackward(HostStream(), dloss.input(), logits.input(), labels.input(),
                                   dlogits.gradient(WriteMode::kAssign)),
              absl::OkStatus());
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(std::isnan(dlogits.data[i]), i >= 3) << i;
  }
}

TEST(CrossEntropyEdgeTest, ANanLogitMakesTheLossNan) {
  Tensor<float> logits = Random<float>({4, 65}, 1), loss({}, 0);
  logits.data[100] = std::numeric_limits<float>::quiet_NaN();
  const Tensor<int32_t> labels({4}, 0);
  ASSERT_EQ(CrossEntropy(HostStream(), logits.input(), labels.input(), loss.view()), absl::OkStatus());
  EXPECT_TRUE(std::isnan(loss.data[0]));
}

TEST(CrossEntropyEdgeTest, RefusesShapesThatDoNotFit) {
  const Tensor<float> logits({4, 3}), none({0, 3});
  const Tensor<int32_t> labels({5}, 0), no_labels({0}, 0), four({4}, 0);
  Tensor<float> loss({}), vector({2});
  ExpectInvalid(CrossEntropy(HostStream(), logits.input(), labels.input(), loss.view()),
                {"CrossEntropy", "number of labels: 5", "rows of logits: 4"});
  ExpectInvalid(CrossEntropy(HostStream(), none.input(), no_labels.input(), loss.view()),
                {"rows of logits: 0", "at least 1"});
  ExpectInvalid(CrossEntropy(HostStream(), logits.input(), four.input(), vector.view()), {"elements of loss: 2", "1"});
  ExpectInvalid(CrossEntropyBackward(HostStream(), TensorView<const float>(), logits.input(), four.input(),
                                     loss.gradient(WriteMode::kAssign)),
                {"dloss is empty"});
}

}  // namespace
}  // namespace reprise::kernels
