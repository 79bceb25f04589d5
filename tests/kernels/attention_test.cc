#include "reprise/kernels/attention.h"

#include "tests/kernels/kernel_testing.h"

namespace reprise::kernels {
namespace {

struct Dimensions {
  int64_t batch, time, width, heads;
};

Values Reference(const Dimensions& d, const Values& qkv) {
  const int64_t head_width = d.width / d.heads, stride = 3 * d.width;
  Values y(d.batch * d.time * d.width, 0.0);
  for (int64_t b = 0; b < d.batch; ++b) {
    for (int64_t h = 0; h < d.heads; ++h) {
      const auto at = [&](int64_t t, int64_t part, int64_t c) {
        return qkv[(b * d.time + t) * stride + part * d.width + h * head_width + c];
      };
      for (int64_t t = 0; t < d.time; ++t) {
        Values p(t + 1);
        double sum = 0;
        for (int64_t s = 0; s <= t; ++s) {
          double score = 0;
          for (int64_t c = 0; c < head_width; ++c) score += at(t, 0, c) * at(s, 1, c);
          sum += p[s] = std::exp(score / std::sqrt(static_cast<double>(head_width)));
        }
        for (int64_t s = 0; s <= t; ++s) {
          for (int64_t c = 0; c < head_width; ++c) {
            y[(b * d.time + t) * d.width + h * head_width + c] += p[s] / sum * at(s, 2, c);
          }
        }
      }
    }
  }
  return y;
}

template <class T>
class CausalAttentionTest : public testing::Test {};
using ActivationDtypes = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(CausalAttentionTest, ActivationDtypes);

TYPED_TEST(CausalAttentionTest, ForwardAndGradient) {
  using T = TypeParam;
  for (const Dimensions& d : {Dimensions{1, 1, 1, 1}, Dimensions{2, 7, 6, 3}, Dimensions{1, 63, 4, 1},
                              Dimensions{2, 65, 10, 2}, Dimensions{1, 131, 14, 2}, Dimensions{0, 5, 4, 2}}) {
    const Tensor<T> qkv = Random<T>({d.batch, d.time, 3 * d.width}, 1, 2);
    const Tensor<T> dy = Random<T>({d.batch, d.time, d.width}, 2);
    Tensor<T> y(dy.shape);
    Tensor<float> log_sum_exp({d.batch, d.heads, d.time});
    const int heads = static_cast<int>(d.heads);
    ASSERT_EQ(CausalAttention(HostStream(), qkv.input(), heads, y.view(), log_sum_exp.view()), absl::OkStatus());
    // A probability's relative error is that of its score, a sum of head_width products up to 4; values are up to 2.
    const double relative = SumError(d.width / d.heads, 4) + SumError(d.time) / d.time + 0x1p-22;
    ExpectNear<T>(Reference(d, qkv.values()), y.values(), 2 * 2 * relative);

    const Values dqkv = WrittenGradient<T>(qkv.shape, [&](Gradient<T> dqkv) {
      return CausalAttentionBackward(HostStream(), dy.input(), qkv.input(), heads, log_sum_exp.view(), dqkv);
    });
    // Sums over up to `time` queries of probability times a difference of up to 4 head_width, times a factor up to 2.
    ExpectGradient<T>([&](const Values& v) { return Dot(Reference(d, v), dy.values()); }, qkv.values(), dqkv,
                      d.time * 8 * (d.width / d.heads) * relative);
  }
}

TEST(CausalAttentionEdgeTest, LaterRowsHaveNoInfluence) {
  constexpr int64_t kChanged = 40;
  const Tensor<float> qkv = Random<float>({1, 70, 12}, 1), other = Random<float>({1, 70, 12}, 2);
  Tensor<float> changed = qkv, y({1, 70, 4}), changed_y({1, 70, 4}), lse({1, 2, 70});
  std::copy(other.data.begin() + kChanged * 12, other.data.end(), changed.data.begin() + kChanged * 12);
  ASSERT_EQ(CausalAttention(HostStream(), qkv.input(), 2, y.view(), lse.view()), absl::OkStatus());
  ASSERT_EQ(CausalAttention(HostStream(), changed.input(), 2, changed_y.view(), lse.view()), absl::OkStatus());
  for (int64_t i = 0; i < y.size(); ++i) EXPECT_EQ(changed_y.data[i] == y.data[i], i < kChanged * 4) << i;
}

TEST(CausalAttentionEdgeTest, RefusesShapesThatDoNotFit) {
  Tensor<float> qkv({2, 5, 24}), y({2, 5, 8}), y7({2, 5, 7}), lse({2, 4, 5}), lse3({2, 3, 5});
  const Stream stream = HostStream();
  ExpectInvalid(CausalAttention(stream, qkv.view(), 3, y.view(), lse3.view()), {"heads: 3", "width: 8"});
  ExpectInvalid(CausalAttention(stream, qkv.view(), 0, y.view(), lse.view()), {"heads: 0", "width: 8"});
  ExpectInvalid(CausalAttention(stream, qkv.view(), 4, y7.view(), lse.view()), {"columns of y: 7", ": 8"});
  ExpectInvalid(CausalAttention(stream, qkv.view(), 4, y.view(), lse3.view()), {"log_sum_exp: 30", ": 40"});
  ExpectInvalid(CausalAttention(stream, y.view(), 4, y.view(), lse.view()), {"3, which does not divide", "qkv: 8"});
  ExpectInvalid(CausalAttentionBackward(stream, y.view(), qkv.view(), 4, TensorView<const float>(),
                                        qkv.gradient(WriteMode::kAdd)),
                {"CausalAttentionBackward", "log_sum_exp is empty"});
}

}  // namespace
}  // namespace reprise::kernels
