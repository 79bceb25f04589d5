#include "reprise/kernels/attention.h"

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/cuda/host_comparison.h"

namespace reprise::kernels {
namespace {

struct Dimensions {
  int64_t batch, time, width, heads;
};

template <class T>
class CudaAttentionTest : public ::testing::Test {};
using ActivationDtypes = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(CudaAttentionTest, ActivationDtypes);

TYPED_TEST(CudaAttentionTest, ForwardAndGradient) {
  using T = TypeParam;
  for (const Dimensions& d :
       {Dimensions{1, 1, 1, 1}, Dimensions{0, 5, 4, 2}, Dimensions{2, 7, 6, 3}, Dimensions{1, 63, 16, 1},
        Dimensions{2, 64, 64, 2}, Dimensions{2, 65, 130, 2}, Dimensions{1, 131, 14, 2}, Dimensions{2, 200, 192, 3},
        Dimensions{1, 257, 256, 2}, Dimensions{1, 130, 200, 1}, Dimensions{1, 129, 300, 1}}) {
    const int heads = static_cast<int>(d.heads);
    const std::string extents = absl::StrCat(d.batch, " x ", d.time, " x ", d.width, ", ", d.heads, " heads");
    const Tensor<T> qkv_values = Random<T>({d.batch, d.time, 3 * d.width}, 1, 2);
    Tensor<T> y_values({d.batch, d.time, d.width});
    Tensor<float> log_sum_exps({d.batch, d.heads, d.time});
    ASSERT_EQ(CausalAttention(HostStream(), qkv_values.input(), heads, y_values.view(), log_sum_exps.view()),
              absl::OkStatus());
    // A probability's relative error is that of its score, a sum of head_width products up to 4; values are up to 2.
    const double relative = SumError(d.width / d.heads, 4) + SumError(d.time) / d.time + 0x1p-22;
    HostComparison forward("CausalAttention of " + extents);
    const Operand qkv = forward.Input(qkv_values);
    const Operand y = forward.Output<T>(y_values.shape, WriteMode::kAssign, 2 * 2 * relative);
    const Operand log_sum_exp = forward.Output<float>(log_sum_exps.shape, WriteMode::kAssign, 2 * relative);
    forward.Run([&](Stream s, const Memory& m) {
      return CausalAttention(s, m.view<T>(qkv), heads, m.view<T>(y), m.view<float>(log_sum_exp));
    });
    ForEachMode([&](WriteMode mode) {
      HostComparison both("CausalAttentionBackward of " + extents + ", " + NameOf(mode));
      const Operand dy = both.Input(Random<T>(y_values.shape, 2)), qkv = both.Input(qkv_values);
      const Operand log_sum_exp = both.Input(log_sum_exps);
      // Sums over up to `time` queries of probability times a difference of up to 4 head_width, times a factor up to 2.
      const Operand dqkv = both.Output<T>(qkv_values.shape, mode, d.time * 8 * (d.width / d.heads) * relative);
      both.Run([&](Stream s, const Memory& m) {
        return CausalAttentionBackward(s, m.view<T>(dy), m.view<T>(qkv), heads, m.view<const float>(log_sum_exp),
                                       m.gradient<T>(dqkv, mode));
      });
    });
  }
}

class CudaAttentionWorkspaceTest : public ::testing::Test {};

// A workspace for two of six heads takes three launches, and gives the same bytes.
TEST_F(CudaAttentionWorkspaceTest, BackwardTakesAsManyHeadsAtATimeAsFit) {
  constexpr int64_t kSequences = 2, kTime = 70, kWidth = 24, kHeads = 3;
  constexpr int64_t kFloats = kSequences * kTime * kWidth, kSums = kSequences * kHeads * kTime;
  const Tensor<float> qkv = Random<float>({3 * kFloats}, 1), dy = Random<float>({kFloats}, 2);
  Device& device = Device::Get();
  float* base = reinterpret_cast<float*>(device.memory(sizeof(float) * (8 * kFloats + 2 * kSums)));
  float *device_qkv = base, *device_dy = base + 3 * kFloats, *dqkv = device_dy + kFloats;
  float *log_sum_exp = dqkv + 3 * kFloats, *workspace = log_sum_exp + kSums, *y = workspace + kSums;
  ASSERT_EQ(device.Upload(device_qkv, qkv.data.data(), sizeof(float) * 3 * kFloats), absl::OkStatus());
  ASSERT_EQ(device.Upload(device_dy, dy.data.data(), sizeof(float) * kFloats), absl::OkStatus());
  const AttentionShape shape = {kSequences, kTime, kWidth, kHeads};
  const auto f32 = DType::kFloat32;
  std::vector<float> results[2];
  for (const int64_t heads_at_once : {kSequences * kHeads, int64_t{2}}) {
    const LaunchPlace place = {device.cuda_stream(), workspace, heads_at_once * AttentionBackwardBytes(kTime)};
    ASSERT_EQ(device.Run([&] {
      absl::Status status =
          CudaStatus(LaunchCausalAttention(place, {shape, {f32, device_qkv}, {f32, y}, log_sum_exp}), "forward");
      status.Update(CudaStatus(
          LaunchCausalAttentionBackward(place, {shape, {f32, device_dy}, {f32, device_qkv}, log_sum_exp, {f32, dqkv}}),
          "backward"));
      return status;
    }),
              absl::OkStatus());
    std::vector<float>& result = results[heads_at_once == 2];
    result.resize(3 * kFloats);
    ASSERT_EQ(cudaMemcpy(result.data(), dqkv, sizeof(float) * result.size(), cudaMemcpyDeviceToHost), cudaSuccess);
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace reprise::kernels
