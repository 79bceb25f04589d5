#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "reprise/kernels/adamw.h"
#include "reprise/kernels/sgd.h"
#include "tests/kernels/cuda/host_comparison.h"

namespace reprise::kernels {
namespace {

template <class M>
class CudaOptimizerTest : public ::testing::Test {};
using MasterDtypes = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(CudaOptimizerTest, MasterDtypes);

struct Case {
  int64_t count;
  float clip_norm;
  int64_t steps;
  int32_t skip;
};
const Case kCases[] = {{0, 0, 1, 0},     {1, 0, 1, 0},          {7, 0.5f, 2, 0},
                       {1025, 0, 3, 0},  {4096, 0.5f, 1000, 0}, {4100, 1e6f, 12, 0},
                       {70001, 1, 5, 0}, {100, 0.5f, 3, 1},     {kLargeCount, 0.5f, 7, 0}};

StepState StateOf(const Case& c) {
  const double norm = c.skip != 0 ? std::nan("") : c.count * 20.0;
  const SkipReason skip = c.skip != 0 ? SkipReason::kGradientNotFinite : SkipReason::kNone;
  return {.norm_squared = norm, .optimizer_steps = c.steps, .skip = skip};
}
const ControlBlock kControl = {.learning_rate = 0.013f, .loss_scale = 4, .gradient_divisor = 6};

TYPED_TEST(CudaOptimizerTest, AdamWEqualsTheHostBitForBit) {
  using M = TypeParam;
  for (const Case& c : kCases) {
    HostComparison both(absl::StrCat("AdamW of ", c.count, ", clipped to ", c.clip_norm, ", update ", c.steps,
                                     c.skip != 0 ? ", skipped" : ""));
    const Operand control = both.Struct(kControl), state = both.Struct(StateOf(c));
    const Operand sum = both.Input(Random<float>({c.count}, 1, 8)), master = both.Update(Random<M>({c.count}, 2));
    Tensor<float> second = Random<float>({c.count}, 4);
    for (float& v : second.data) v = std::abs(v);
    const Operand m1 = both.Update(Random<float>({c.count}, 3)), m2 = both.Update(second);
    both.Run([&](Stream s, const Memory& m) {
      return AdamW(s, {.update = {.control = m.data<ControlBlock>(control),
                                  .step_state = m.data<StepState>(state),
                                  .clip_norm = c.clip_norm,
                                  .gradient_sum = m.data<float>(sum),
                                  .master_dtype = DTypeOf<M>::value,
                                  .master = m.data<M>(master),
                                  .count = c.count},
                       .beta2 = 0.99f,
                       .epsilon = 1e-6f,
                       .weight_decay = 0.1f,
                       .first_moment = m.data<float>(m1),
                       .second_moment = m.data<float>(m2)});
    });
  }
}

TYPED_TEST(CudaOptimizerTest, SgdEqualsTheHostBitForBit) {
  using M = TypeParam;
  for (const Case& c : kCases) {
    for (const float momentum : {0.0f, 0.9f}) {
      HostComparison both(absl::StrCat("Sgd of ", c.count, ", clipped to ", c.clip_norm, ", momentum ", momentum,
                                       c.skip != 0 ? ", skipped" : ""));
      const Operand control = both.Struct(kControl), state = both.Struct(StateOf(c));
      const Operand sum = both.Input(Random<float>({c.count}, 1, 8)), master = both.Update(Random<M>({c.count}, 2));
      const Operand velocity = both.Update(Random<float>({c.count}, 3));
      both.Run([&](Stream s, const Memory& m) {
        return Sgd(s, {.update = {.control = m.data<ControlBlock>(control),
                                  .step_state = m.data<StepState>(state),
                                  .clip_norm = c.clip_norm,
                                  .gradient_sum = m.data<float>(sum),
                                  .master_dtype = DTypeOf<M>::value,
                                  .master = m.data<M>(master),
                                  .count = c.count},
                       .momentum = momentum,
                       .weight_decay = 0.1f,
                       .velocity = momentum == 0 ? nullptr : m.data<float>(velocity)});
      });
    }
  }
}

// Of any sign, from the smallest float to the largest.
Tensor<float> AnyMagnitudes(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> exponent(std::log(1.4e-45), std::log(3.4e38));
  Tensor<float> values({count});
  for (float& value : values.data) {
    value = static_cast<float>(std::exp(exponent(random)));
    if (random() % 2 == 0) value = -value;
  }
  return values;
}

TYPED_TEST(CudaOptimizerTest, EveryMagnitudeEqualsTheHostBitForBit) {
  using M = TypeParam;
  constexpr int64_t kCount = 4097;
  const Tensor<float> sums = AnyMagnitudes(kCount, 1);
  double squares = 0;
  for (const float sum : sums.data) squares += static_cast<double>(sum) * sum;
  // Unclipped, and clipped by very much.
  struct Range {
    float clip_norm, divisor;
    double norm_squared;
  };
  for (const Range& range : {Range{0, 1, 1e70}, Range{1e-30f, 1, squares}, Range{1, 1024, squares}}) {
    HostComparison adamw(
        absl::StrCat("AdamW of every magnitude, clipped to ", range.clip_norm, ", divided by ", range.divisor));
    HostComparison sgd(
        absl::StrCat("Sgd of every magnitude, clipped to ", range.clip_norm, ", divided by ", range.divisor));
    for (HostComparison* const both : {&adamw, &sgd}) {
      const Operand control = both->Struct(ControlBlock{.learning_rate = 0.013f, .gradient_divisor = range.divisor});
      const Operand state = both->Struct(StepState{.norm_squared = range.norm_squared, .optimizer_steps = 3});
      const Operand sum = both->Input(sums), master = both->Update(Random<M>({kCount}, 2));
      Tensor<float> second = AnyMagnitudes(kCount, 4);
      for (float& v : second.data) v = std::abs(v);
      const Operand m1 = both->Update(AnyMagnitudes(kCount, 3)), m2 = both->Update(second);
      both->Run([&](Stream s, const Memory& m) {
        const UpdateArguments update = {.control = m.data<ControlBlock>(control),
                                        .step_state = m.data<StepState>(state),
                                        .clip_norm = range.clip_norm,
                                        .gradient_sum = m.data<float>(sum),
                                        .master_dtype = DTypeOf<M>::value,
                                        .master = m.data<M>(master),
                                        .count = kCount};
        if (both == &sgd) return Sgd(s, {.update = update, .momentum = 0.9f, .velocity = m.data<float>(m1)});
        return AdamW(s, {.update = update,
                         .epsilon = 1e-15f,
                         .weight_decay = 0.1f,
                         .first_moment = m.data<float>(m1),
                         .second_moment = m.data<float>(m2)});
      });
    }
  }
}

}  // namespace
}  // namespace reprise::kernels
