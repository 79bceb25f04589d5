#include "reprise/kernels/embedding.h"

#include "tests/kernels/kernel_testing.h"

namespace reprise::kernels {
namespace {

Values Reference(const Tensor<int32_t>& ids, const Values& table, int64_t width) {
  Values y;
  for (int64_t i = 0; i < ids.size(); ++i) {
    y.insert(y.end(), table.begin() + ids.data[i] * width, table.begin() + (ids.data[i] + 1) * width);
  }
  return y;
}

template <class D>
class EmbeddingTest : public testing::Test {};
TYPED_TEST_SUITE(EmbeddingTest, AllDtypes);

TYPED_TEST(EmbeddingTest, ForwardAndGradient) {
  using T = typename TypeParam::Activation;
  using G = typename TypeParam::ParameterGradient;
  struct Case {
    Shape ids;
    int64_t entries, width;
  };
  for (const auto& [shape, entries, width] :
       {Case{{1}, 1, 1}, Case{{3, 5}, 7, 13}, Case{{8, 65}, 63, 130}, Case{{0}, 5, 3}}) {
    const Tensor<int32_t> ids = RandomIds(shape, static_cast<int32_t>(entries), 1);
    const Tensor<T> table = Random<T>({entries, width}, 2);
    Shape y_shape = shape;
    y_shape.push_back(width);
    const Tensor<T> dy = Random<T>(y_shape, 3);
    Tensor<T> y(y_shape);
    ASSERT_EQ(Embedding(HostStream(), ids.input(), table.input(), y.view()), absl::OkStatus());
    EXPECT_EQ(Reference(ids, table.values(), width), y.values());
    const Values dtable = WrittenGradient<G>(table.shape, [&](Gradient<G> dtable) {
      return EmbeddingBackward(HostStream(), dy.input(), ids.input(), dtable);
    });
    ExpectGradient<G>([&, width = width](const Values& v) { return Dot(Reference(ids, v, width), dy.values()); },
                      table.values(), dtable, SumError(ids.size()));
  }
}

TEST(EmbeddingEdgeTest, AnIdOutOfRangeGivesNanAndNoGradient) {
  Tensor<int32_t> ids({4}, 0);
  ids.data = {1, -1, 3, std::numeric_limits<int32_t>::max()};
  const Tensor<float> table = Random<float>({3, 2}, 1);
  Tensor<float> y({4, 2}, 0), dy({4, 2}, 1), dtable({3, 2});
  ASSERT_EQ(Embedding(HostStream(), ids.view(), table.input(), y.view()), absl::OkStatus());
  EXPECT_EQ(y.data[0], table.data[2]);
  for (int64_t i = 2; i < 8; ++i) EXPECT_TRUE(std::isnan(y.data[i])) << i;
  ASSERT_EQ(EmbeddingBackward(HostStream(), dy.input(), ids.view(), dtable.gradient(WriteMode::kAssign)),
            absl::OkStatus());
  EXPECT_THAT(dtable.data, testing::ElementsAre(0, 0, 1, 1, 0, 0));
}

TEST(EmbeddingEdgeTest, RefusesShapesThatDoNotFit) {
  Tensor<int32_t> ids({4}, 0);
  Tensor<float> table({3, 2}), y({4, 5}), dy({3, 2});
  ExpectInvalid(Embedding(HostStream(), ids.view(), table.view(), y.view()),
                {"Embedding", "columns of y: 5", "columns of table: 2"});
  ExpectInvalid(EmbeddingBackward(HostStream(), dy.input(), ids.view(), table.gradient(WriteMode::kAdd)),
                {"rows of dy: 3", "number of ids: 4"});
}

}  // namespace
}  // namespace reprise::kernels
