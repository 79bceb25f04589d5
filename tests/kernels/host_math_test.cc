#include "kernels/host_math.h"

#include "tests/kernels/kernel_testing.h"

namespace reprise::kernels {
namespace {

// Every build that this machine can run.
std::vector<const HostMath*> RunnableMath() {
  std::vector<const HostMath*> all = {&kBaselineMath};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) all.push_back(&kAvx2Math);
#endif
  if (&Math() != all.back()) all.push_back(&Math());
  return all;
}

class HostMathTest : public testing::TestWithParam<const HostMath*> {};
INSTANTIATE_TEST_SUITE_P(InstructionSets, HostMathTest, testing::ValuesIn(RunnableMath()),
                         [](const auto& info) { return std::to_string(info.index); });

TEST_P(HostMathTest, ExpIsGoodToAQuarterOfAMillionth) {
  std::vector<float> x, y;
  for (float v = -86.99f; v < 87; v += 0.0137f) x.push_back(v);
  y.resize(x.size());
  GetParam()->exp_and_sum(x.data(), 0, y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(y[i] / std::exp(static_cast<double>(x[i])), 1, 0x1p-22) << x[i];
  }
}

TEST_P(HostMathTest, ExpIsZeroFarBelowAndNeverDenormal) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> x = {-87.1f, -200, -1e30f, -infinity, 0}, y(5);
  EXPECT_EQ(GetParam()->exp_and_sum(x.data(), 0, y.data(), 5), 1);
  EXPECT_THAT(y, testing::ElementsAre(0, 0, 0, 0, 1));
}

TEST_P(HostMathTest, SumsAndShiftsRowsOfAnyLength) {
  for (const int64_t n : {1, 7, 15, 16, 17, 63, 65, 1031}) {
    const Tensor<float> x = Random<float>({n}, n);
    std::vector<float> y(n);
    double want = 0, dot = 0, max = -2;
    for (double v : x.values()) {
      want += std::exp(v - 0.5);
      dot += v * v;
      max = std::max(max, v);
    }
    EXPECT_NEAR(GetParam()->exp_and_sum(x.data.data(), 0.5f, y.data(), n), want, SumError(n, 2) + 0x1p-22 * want);
    EXPECT_NEAR(GetParam()->dot(x.data.data(), x.data.data(), n), dot, SumError(n));
    EXPECT_EQ(GetParam()->max(x.data.data(), n), static_cast<float>(max));
  }
}

TEST_P(HostMathTest, KeepsNan) {
  for (const int64_t n : {1, 17, 65}) {
    Tensor<float> x({n}, 0), y({n}, 0);
    x.data[n - 1] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(GetParam()->exp_and_sum(x.data.data(), 0, y.data.data(), n)));
    EXPECT_TRUE(std::isnan(GetParam()->dot(x.data.data(), x.data.data(), n)));
    GetParam()->gelu(x.data.data(), y.data.data(), n);
    EXPECT_TRUE(std::isnan(y.data[n - 1]));
  }
}

// At every offset from alignment; a result that depended on it would change from run to run.
TEST_P(HostMathTest, ResultsDoNotDependOnAddresses) {
  constexpr int64_t kSize = 61, kLargestOffset = 16;
  const Tensor<float> source = Random<float>({kSize * kSize}, 1);
  const auto results = [&](int64_t offset) {
    std::vector<float> memory(kSize * kSize + offset), exponentials(kSize * kSize + offset), results(kSize * kSize + 2);
    std::copy(source.data.begin(), source.data.end(), memory.begin() + offset);
    const float* x = memory.data() + offset;
    results[0] = GetParam()->exp_and_sum(x, 0, exponentials.data() + offset, kSize * kSize);
    results[1] = GetParam()->dot(x, x, kSize * kSize);
    GetParam()->gemm(kSize, kSize, kSize, 1, {x, kSize, false}, {x, kSize, true}, results.data() + 2, kSize, false);
    for (const auto& [m, n] : {std::array<int64_t, 2>{1, kSize}, {kSize, 1}, {1, 1}, {3, 3}}) {
      std::vector<float> c(m * n);
      GetParam()->gemm(m, n, kSize, 1, {x, kSize, false}, {x, kSize, true}, c.data(), n, false);
      results.insert(results.end(), c.begin(), c.end());
    }
    return results;
  };
  const std::vector<float> want = results(0);
  for (int64_t offset = 1; offset <= kLargestOffset; ++offset) EXPECT_EQ(results(offset), want) << offset;
}

TEST_P(HostMathTest, GemmMultipliesPartsOfLargerMatrices) {
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1}, {7, 13, 3}, {65, 97, 130}, {64, 1, 64}}) {
    const Tensor<float> a = Random<float>({m, k + 3}, 1), b = Random<float>({n, k + 5}, 2);
    for (const bool add : {false, true}) {
      Tensor<float> c({m, n + 2}, add ? 1.0f : std::numeric_limits<float>::quiet_NaN());
      GetParam()->gemm(m, n, k, 0.5f, {a.data.data(), k + 3, false}, {b.data.data(), k + 5, true}, c.data.data(), n + 2,
                       add);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double want = 0;
          for (int64_t l = 0; l < k; ++l) want += 0.5 * a.data[i * (k + 3) + l] * b.data[j * (k + 5) + l];
          ASSERT_NEAR(c.data[i * (n + 2) + j], want + (add ? 1 : 0), SumError(k + 1)) << i << "," << j;
        }
        ASSERT_EQ(std::isnan(c.data[i * (n + 2) + n]), !add) << "the element beside the row must stay";
      }
    }
  }
}

}  // namespace
}  // namespace reprise::kernels
