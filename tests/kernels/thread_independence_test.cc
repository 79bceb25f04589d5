// The same kernels on sizes that are split: once with all threads, once serially; the results are equal bit for bit.
#include <cstring>

#include "kernels/parallel.h"
#include "reprise/core/norm_ranges.h"
#include "reprise/kernels/accumulate.h"
#include "reprise/kernels/activations.h"
#include "reprise/kernels/adamw.h"
#include "reprise/kernels/attention.h"
#include "reprise/kernels/bias.h"
#include "reprise/kernels/cross_entropy.h"
#include "reprise/kernels/embedding.h"
#include "reprise/kernels/linear.h"
#include "reprise/kernels/rms_norm.h"
#include "tests/kernels/kernel_testing.h"

namespace reprise::kernels {
namespace {

// Runs `body` as one call of a ParallelFor, in which nested work is serial.
void RunSerially(const std::function<void()>& body) {
  ParallelFor(2, [&](int64_t i) {
    if (i == 0) body();
  });
}

// `run` makes all results and returns them as one list of bytes.
void ExpectThreadsDoNotMatter(const std::function<std::string()>& run) {
  std::string serial;
  RunSerially([&] { serial = run(); });
  for (int repetition = 0; repetition < 3; ++repetition) EXPECT_TRUE(run() == serial);
}

template <class... Tensors>
std::string Bytes(const Tensors&... tensors) {
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(tensors.data.data()), tensors.data.size() * sizeof(tensors.data[0])),
   ...);
  return bytes;
}

constexpr WriteMode kAssign = WriteMode::kAssign;

template <class D>
class ThreadIndependenceTest : public testing::Test {};
TYPED_TEST_SUITE(ThreadIndependenceTest, AllDtypes);

TYPED_TEST(ThreadIndependenceTest, Linear) {
  using T = typename TypeParam::Activation;
  using G = typename TypeParam::ParameterGradient;
  const Tensor<T> x = Random<T>({401, 257}, 1), w = Random<T>({509, 257}, 2), dy = Random<T>({401, 509}, 3);
  ExpectThreadsDoNotMatter([&] {
    Tensor<T> y(dy.shape), dx(x.shape);
    Tensor<G> dw(w.shape);
    EXPECT_EQ(Linear(HostStream(), x.input(), w.input(), y.view()), absl::OkStatus());
    EXPECT_EQ(
        LinearBackward(HostStream(), dy.input(), x.input(), w.input(), dx.gradient(kAssign), dw.gradient(kAssign)),
        absl::OkStatus());
    return Bytes(y, dx, dw);
  });
}

TYPED_TEST(ThreadIndependenceTest, RowsAndColumns) {
  using T = typename TypeParam::Activation;
  using G = typename TypeParam::ParameterGradient;
  const Tensor<T> x = Random<T>({1301, 131}, 1), gain = Random<T>({131}, 2), dy = Random<T>(x.shape, 3);
  ExpectThreadsDoNotMatter([&] {
    Tensor<T> y(x.shape), dx(x.shape), gelu(x.shape);
    Tensor<G> dgain({131}), dbias({131});
    EXPECT_EQ(RmsNorm(HostStream(), x.input(), gain.input(), y.view(), 1e-5f), absl::OkStatus());
    EXPECT_EQ(RmsNormBackward(HostStream(), dy.input(), x.input(), gain.input(), 1e-5f, dx.gradient(kAssign),
                              dgain.gradient(kAssign)),
              absl::OkStatus());
    EXPECT_EQ(AddBiasBackward(HostStream(), dy.input(), Gradient<T>(), dbias.gradient(kAssign)), absl::OkStatus());
    EXPECT_EQ(GeluTanh(HostStream(), x.input(), gelu.view()), absl::OkStatus());
    return Bytes(y, dx, gelu, dgain, dbias);
  });
}

TYPED_TEST(ThreadIndependenceTest, EmbeddingAndLoss) {
  using T = typename TypeParam::Activation;
  using G = typename TypeParam::ParameterGradient;
  const Tensor<int32_t> ids = RandomIds({900}, 251, 1);
  const Tensor<T> dy = Random<T>({900, 251}, 2);
  const Tensor<float> dloss({}, 1);
  ExpectThreadsDoNotMatter([&] {
    Tensor<G> dtable({251, 251});
    Tensor<float> loss({});
    Tensor<T> dlogits(dy.shape);
    EXPECT_EQ(EmbeddingBackward(HostStream(), dy.input(), ids.input(), dtable.gradient(kAssign)), absl::OkStatus());
    EXPECT_EQ(CrossEntropy(HostStream(), dy.input(), ids.input(), loss.view()), absl::OkStatus());
    EXPECT_EQ(CrossEntropyBackward(HostStream(), dloss.input(), dy.input(), ids.input(), dlogits.gradient(kAssign)),
              absl::OkStatus());
    return Bytes(dtable, loss, dlogits);
  });
}

TYPED_TEST(ThreadIndependenceTest, Attention) {
  using T = typename TypeParam::Activation;
  const Tensor<T> qkv = Random<T>({2, 129, 3 * 32}, 1), dy = Random<T>({2, 129, 32}, 2);
  ExpectThreadsDoNotMatter([&] {
    Tensor<T> y(dy.shape), dqkv(qkv.shape);
    Tensor<float> lse({2, 4, 129});
    EXPECT_EQ(CausalAttention(HostStream(), qkv.input(), 4, y.view(), lse.view()), absl::OkStatus());
    EXPECT_EQ(CausalAttentionBackward(HostStream(), dy.input(), qkv.input(), 4, lse.input(), dqkv.gradient(kAssign)),
              absl::OkStatus());
    return Bytes(y, lse, dqkv);
  });
}

TEST(StepThreadIndependenceTest, AccumulateAndUpdate) {
  constexpr int64_t kCount = 200003;
  const Tensor<float> parts = Random<float>({2, kCount}, 1);
  const ControlBlock control = {.learning_rate = 0.01f, .gradient_divisor = 3};
  ExpectThreadsDoNotMatter([&] {
    Tensor<float> master = Random<float>({kCount}, 2), m({kCount}, 0), v({kCount}, 0);
    Tensor<float> sum({kCount});
    std::vector<double> norm(NormRanges(kCount));
    EXPECT_EQ(ReduceAccumulate(HostStream(), {.control = &control,
                                              .reduce_dtype = DType::kFloat32,
                                              .parts = parts.data.data(),
                                              .num_parts = 2,
                                              .elements = kCount,
                                              .accumulator = sum.data.data(),
                                              .segments = {{0, 70001}, {70016, kCount - 70016}},
                                              .norm_partials = norm.data()}),
              absl::OkStatus());
    const StepState state = {.norm_squared = norm.back(), .optimizer_steps = 1};
    EXPECT_EQ(AdamW(HostStream(), {.update = {.control = &control,
                                              .step_state = &state,
                                              .clip_norm = 0.5f,
                                              .gradient_sum = sum.data.data(),
                                              .master = master.data.data(),
                                              .count = kCount},
                                   .first_moment = m.data.data(),
                                   .second_moment = v.data.data()}),
              absl::OkStatus());
    return Bytes(master, m, v) + std::string(reinterpret_cast<const char*>(norm.data()), norm.size() * sizeof(double));
  });
}

}  // namespace
}  // namespace reprise::kernels
