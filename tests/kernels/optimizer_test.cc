#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>

#include "reprise/kernels/adamw.h"
#include "reprise/kernels/sgd.h"
#include "reprise/kernels/step.h"
#include "tests/kernels/kernel_testing.h"

namespace reprise::kernels {
namespace {

template <class M>
class OptimizerTest : public testing::Test {
 protected:
  // Of one step: a gradient sum, and the divided and clipped gradient in double.
  Values SetStep(int64_t count, int64_t t, float clip_norm) {
    sum_ = Random<float>({count}, 10 + t, 8);
    control_ = {.learning_rate = 0.01f * t, .loss_scale = 4, .gradient_divisor = 6};
    state_.optimizer_steps = t;
    state_.norm_squared = Dot(sum_.values(), sum_.values());
    const double norm = std::sqrt(state_.norm_squared) / 24;
    Values gradient = sum_.values();
    for (double& g : gradient) g = g / 24 * (clip_norm > 0 ? std::min(1.0, clip_norm / norm) : 1.0);
    return gradient;
  }
  UpdateArguments Update(Tensor<M>& master, float clip_norm) {
    return {.control = &control_,
            .step_state = &state_,
            .clip_norm = clip_norm,
            .gradient_sum = sum_.data.data(),
            .master_dtype = DTypeOf<M>::value,
            .master = master.data.data(),
            .count = master.size()};
  }

  Tensor<float> sum_{{0}};
  ControlBlock control_;
  StepState state_;
};
using MasterDtypes = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(OptimizerTest, MasterDtypes);

// A handful of operations on values of size 1 at most, and the quotient of moments, each good to a few roundings.
constexpr double kUpdateError = 16 * 0x1p-24;

TYPED_TEST(OptimizerTest, AdamWFollowsItsFormulaOverSteps) {
  using M = TypeParam;
  for (const int64_t count : {1, 7, 1025, 40001}) {
    for (const float clip_norm : {0.0f, 0.5f, 1e6f}) {
      Tensor<M> master = Random<M>({count}, 1);
      Tensor<float> m({count}, 0), v({count}, 0);
      Values want_m(count, 0.0), want_v(count, 0.0);
      for (int64_t t = 1; t <= 3; ++t) {
        const Values gradient = this->SetStep(count, t, clip_norm);
        Values want = master.values();
        const double rate = this->control_.learning_rate, b1 = 0.9f, b2 = 0.99f, decay = 0.1f, epsilon = 1e-6f;
        for (int64_t i = 0; i < count; ++i) {
          want_m[i] = b1 * want_m[i] + (1 - b1) * gradient[i];
          want_v[i] = b2 * want_v[i] + (1 - b2) * gradient[i] * gradient[i];
          const double m_hat = want_m[i] / (1 - std::pow(b1, t)), v_hat = want_v[i] / (1 - std::pow(b2, t));
          want[i] = want[i] - rate * decay * want[i] - rate * m_hat / (std::sqrt(v_hat) + epsilon);
        }
        ASSERT_EQ(AdamW(HostStream(), {.update = this->Update(master, clip_norm),
                                       .beta1 = 0.9f,
                                       .beta2 = 0.99f,
                                       .epsilon = 1e-6f,
                                       .weight_decay = 0.1f,
                                       .first_moment = m.data.data(),
                                       .second_moment = v.data.data()}),
                  absl::OkStatus());
        ExpectNear<M>(want, master.values(), kUpdateError);
        ExpectNear<float>(want_m, m.values(), kUpdateError);
        ExpectNear<float>(want_v, v.values(), kUpdateError);
      }
    }
  }
}

TYPED_TEST(OptimizerTest, SgdFollowsItsFormulaOverSteps) {
  using M = TypeParam;
  for (const float momentum : {0.0f, 0.9f}) {
    for (const float clip_norm : {0.0f, 0.5f}) {
      constexpr int64_t kCount = 1031;
      Tensor<M> master = Random<M>({kCount}, 1);
      Tensor<float> velocity({kCount}, momentum == 0 ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
      Values want_velocity(kCount, 0.0);
      for (int64_t t = 1; t <= 3; ++t) {
        const Values gradient = this->SetStep(kCount, t, clip_norm);
        Values want = master.values();
        for (int64_t i = 0; i < kCount; ++i) {
          want_velocity[i] =
              static_cast<double>(momentum) * want_velocity[i] + gradient[i] + static_cast<double>(0.1f) * want[i];
          want[i] -= static_cast<double>(this->control_.learning_rate) * want_velocity[i];
        }
        ASSERT_EQ(Sgd(HostStream(), {.update = this->Update(master, clip_norm),
                                     .momentum = momentum,
                                     .weight_decay = 0.1f,
                                     .velocity = velocity.data.data()}),
                  absl::OkStatus());
        ExpectNear<M>(want, master.values(), kUpdateError);
        if (momentum > 0) ExpectNear<float>(want_velocity, velocity.values(), kUpdateError);
      }
    }
  }
}

TYPED_TEST(OptimizerTest, ASkippedStepChangesNothing) {
  using M = TypeParam;
  Tensor<M> master = Random<M>({9}, 1);
  Tensor<float> m = Random<float>({9}, 2), v = Random<float>({9}, 3);
  const Tensor<M> old_master = master;
  const Tensor<float> old_m = m, old_v = v;
  this->SetStep(9, 1, 0);
  this->sum_ = Tensor<float>({9});  // NaN
  this->state_.norm_squared = std::numeric_limits<double>::quiet_NaN();
  this->state_.skip = SkipReason::kGradientNotFinite;
  ASSERT_EQ(AdamW(HostStream(),
                  {.update = this->Update(master, 1), .first_moment = m.data.data(), .second_moment = v.data.data()}),
            absl::OkStatus());
  ASSERT_EQ(Sgd(HostStream(), {.update = this->Update(master, 1), .momentum = 0.5f, .velocity = m.data.data()}),
            absl::OkStatus());
  EXPECT_EQ(master.data, old_master.data);
  EXPECT_EQ(m.data, old_m.data);
  EXPECT_EQ(v.data, old_v.data);
}

// ---- every finite gradient ----

// One parameter element, its state and a step of it.
struct Scalar {
  float sum = 0, master = 1, m = 0, v = 0, velocity = 0, clip_norm = 0;
  double others = 0;  // squares of the gradient's other elements
  ControlBlock control = {.learning_rate = 0.1f};
  StepState state = {};

  UpdateArguments Update() {
    state.norm_squared = static_cast<double>(sum) * sum + others;
    return {.control = &control,
            .step_state = &state,
            .clip_norm = clip_norm,
            .gradient_sum = &sum,
            .master = &master,
            .count = 1};
  }
  absl::Status RunAdamW(float beta2, float epsilon) {
    ++state.optimizer_steps;
    return AdamW(HostStream(),
                 {.update = Update(), .beta2 = beta2, .epsilon = epsilon, .first_moment = &m, .second_moment = &v});
  }
  absl::Status RunSgd(float momentum, float weight_decay) {
    return Sgd(HostStream(),
               {.update = Update(), .momentum = momentum, .weight_decay = weight_decay, .velocity = &velocity});
  }
};

// Of any sign, from the smallest float to the largest, each power of ten as likely as another.
float AnyMagnitude(std::mt19937_64& random) {
  const double exponent = std::uniform_real_distribution<double>(std::log(1.4e-45), std::log(3.4e38))(random);
  const float magnitude = static_cast<float>(std::exp(exponent));
  return random() % 2 == 0 ? magnitude : -magnitude;
}

constexpr double kRounding = 0x1p-24;
constexpr double kSmallest = 0x1p-149;

TEST(OptimizerRangeTest, AnAdamWUpdateIsAdamWsForEveryFiniteGradient) {
  std::mt19937_64 random(1);
  const long double largest = std::ldexp(1.0L, 64);
  for (int round = 0; round < 20000; ++round) {
    const float beta2 = std::array{0.5f, 0.9f, 0.999f}[random() % 3];
    const float epsilon = std::array{1e-15f, 1e-8f, 1e-3f, 1.0f}[random() % 4];
    Scalar s;
    for (int t = 1; t <= 3; ++t) {
      const Scalar old = s;
      s.sum = AnyMagnitude(random);
      ASSERT_EQ(s.RunAdamW(beta2, epsilon), absl::OkStatus());
      const long double b1 = 0.9f, b2 = beta2, g = std::clamp<long double>(s.sum, -largest, largest);
      const long double c1 = 1 / (1 - std::pow(b1, t)), c2 = 1 / (1 - std::pow(b2, t));
      const long double root = std::sqrt((b2 * old.v + (1 - b2) * g * g) * c2);
      const long double direction = (b1 * old.m + (1 - b1) * g) * c1 / (root + epsilon);
      // Of the terms of the first moment, which may cancel.
      const long double size = (b1 * std::abs(old.m) + (1 - b1) * std::abs(g)) * c1 / (root + epsilon);
      const long double rate = s.control.learning_rate;
      const long double lost = std::sqrt(kSmallest / 2 / (1 - b2)) / epsilon;
      const long double bound =
          rate * size * (12 * kRounding + lost) + rate * kSmallest * c1 / epsilon + 2 * kRounding * std::abs(s.master);
      ASSERT_LE(std::abs(s.master - (old.master - rate * direction)), bound)
          << "gradient " << s.sum << ", update " << t << ", m " << old.m << ", v " << old.v << ", beta2 " << beta2
          << ", epsilon " << epsilon;
      ASSERT_TRUE(std::isfinite(s.m) && std::isfinite(s.v));
    }
  }
}

TEST(OptimizerRangeTest, TheFirstAdamWUpdateIsTheLearningRateHoweverLargeTheGradient) {
  for (float gradient = 1e-3f; gradient <= 1e38f; gradient *= 10) {
    for (const float sign : {1.0f, -1.0f}) {
      Scalar s{.sum = sign * gradient * 3};
      ASSERT_EQ(s.RunAdamW(0.999f, 1e-8f), absl::OkStatus());
      EXPECT_NEAR(s.master, 1 - sign * 0.1f, 1e-6) << s.sum;
      const float before = s.master;
      s.sum = 1;
      ASSERT_EQ(s.RunAdamW(0.999f, 1e-8f), absl::OkStatus());
      EXPECT_NE(s.master, before) << "the moments of " << gradient << " last";
    }
  }
}

TEST(OptimizerRangeTest, AdamWRecoversFromASquareThatIsAlmostInfinite) {
  Scalar s{.sum = 1e25f};
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(s.RunAdamW(0.5f, 1e-8f), absl::OkStatus());
    ASSERT_LE(s.v, std::numeric_limits<float>::max());
  }
  s.sum = 1;
  for (int i = 0; i < 300; ++i) ASSERT_EQ(s.RunAdamW(0.5f, 1e-8f), absl::OkStatus());
  // 2^128 halves to less than the square of the gradient's own, 1.
  EXPECT_NEAR(s.v, 1, 1e-6);
  const float before = s.master;
  ASSERT_EQ(s.RunAdamW(0.5f, 1e-8f), absl::OkStatus());
  EXPECT_NEAR(s.master, before - 0.1f * s.m, 1e-3f * std::abs(s.m)) << "updates move again";
}

TEST(OptimizerRangeTest, SgdFollowsItsFormulaWhereFloatsHoldTheResult) {
  std::mt19937_64 random(2);
  int compared = 0;
  for (int round = 0; round < 20000; ++round) {
    Scalar s{.sum = AnyMagnitude(random), .velocity = AnyMagnitude(random)};
    s.control.gradient_divisor = std::array{1.0f, 3.0f, 4096.0f, 1e30f}[random() % 4];
    s.control.learning_rate = std::array{1e-10f, 1e-3f, 1.0f}[random() % 3];
    s.clip_norm = std::array{0.0f, 1e-30f, 1e-3f, 1.0f, 1e20f}[random() % 5];
    s.others = random() % 2 == 0 ? 0 : 1e70;
    const float momentum = random() % 2 == 0 ? 0.0f : 0.9f, decay = random() % 2 == 0 ? 0.0f : 0.1f;
    const Scalar old = s;
    ASSERT_EQ(s.RunSgd(momentum, decay), absl::OkStatus());
    const long double divisor = old.control.gradient_divisor;
    const long double norm = std::sqrt(static_cast<long double>(s.state.norm_squared)) / divisor;
    const long double clip = old.clip_norm > 0 ? std::min<long double>(1, old.clip_norm / norm) : 1;
    const long double g = old.sum / divisor * clip;
    const long double kept = momentum == 0 ? 0 : static_cast<long double>(momentum) * old.velocity;
    const long double direction = kept + g + static_cast<long double>(decay) * old.master;
    const long double want = old.master - old.control.learning_rate * direction;
    if (std::abs(direction) > 3e38L || std::abs(want) > 3e38L) continue;
    ++compared;
    const long double size = std::abs(kept) + std::abs(g) + decay;
    ASSERT_LE(std::abs(s.master - want), old.control.learning_rate * (6 * kRounding * size + 4 * kSmallest) +
                                             2 * kRounding * std::abs(want) + kSmallest)
        << "sum " << old.sum << ", velocity " << old.velocity << ", clip_norm " << old.clip_norm;
  }
  EXPECT_GT(compared, 18000);
}

TEST(OptimizerDivisionTest, DividesRatherThanMultipliesByAReciprocal) {
  // 5 / 3 in float differs from 5 * (1 / 3).
  const float sum = 5;
  float master = 0;
  const ControlBlock control = {.learning_rate = 1, .gradient_divisor = 3};
  const StepState state = {.optimizer_steps = 1};
  const UpdateArguments update = {
      .control = &control, .step_state = &state, .gradient_sum = &sum, .master = &master, .count = 1};
  ASSERT_NE(5.0f / 3.0f, 5.0f * (1.0f / 3.0f));
  ASSERT_EQ(Sgd(HostStream(), {.update = update}), absl::OkStatus());
  EXPECT_EQ(master, -(5.0f / 3.0f));
}

TEST(OptimizerArgumentTest, RefusesWhatTheContractExcludesByName) {
  float value = 0;
  const ControlBlock control;
  const StepState state;
  UpdateArguments update = {
      .control = &control, .step_state = &state, .gradient_sum = &value, .master = &value, .count = 1};
  ExpectInvalid(AdamW(HostStream(), {.update = update, .second_moment = &value}), {"AdamW", "first_moment is empty"});
  ExpectInvalid(Sgd(HostStream(), {.update = update, .momentum = 0.9f}), {"Sgd", "velocity is empty"});
  update.clip_norm = -1;
  ExpectInvalid(AdamW(HostStream(), {.update = update, .first_moment = &value, .second_moment = &value}),
                {"AdamW", "clip_norm: -1"});
  update.clip_norm = std::numeric_limits<float>::infinity();
  ExpectInvalid(Sgd(HostStream(), {.update = update}), {"Sgd", "clip_norm: inf"});
  update.clip_norm = 0;
  update.master_dtype = DType::kInt32;
  ExpectInvalid(Sgd(HostStream(), {.update = update}), {"master_dtype"});
  update.control = nullptr;
  ExpectInvalid(Sgd(HostStream(), {.update = update}), {"control is empty"});
}

}  // namespace
}  // namespace reprise::kernels
