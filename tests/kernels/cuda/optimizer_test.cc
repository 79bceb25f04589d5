#include <cmath>

#include "absl/strings/str_cat.h"
#include "reprise/kernels/adamw.h"
#include "reprise/kernels/sgd.h"
#include "tests/kernels/cuda/twin.h"

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
    Twin twin(absl::StrCat("AdamW of ", c.count, ", clipped to ", c.clip_norm, ", update ", c.steps,
                           c.skip != 0 ? ", skipped" : ""));
    const Operand control = twin.Struct(kControl), state = twin.Struct(StateOf(c));
    const Operand sum = twin.Input(Random<float>({c.count}, 1, 8)), master = twin.Update(Random<M>({c.count}, 2));
    Tensor<float> second = Random<float>({c.count}, 4);
    for (float& v : second.data) v = std::abs(v);
    const Operand m1 = twin.Update(Random<float>({c.count}, 3)), m2 = twin.Update(second);
    twin.Run([&](Stream s, const Memory& m) {
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
      Twin twin(absl::StrCat("Sgd of ", c.count, ", clipped to ", c.clip_norm, ", momentum ", momentum,
                             c.skip != 0 ? ", skipped" : ""));
      const Operand control = twin.Struct(kControl), state = twin.Struct(StateOf(c));
      const Operand sum = twin.Input(Random<float>({c.count}, 1, 8)), master = twin.Update(Random<M>({c.count}, 2));
      const Operand velocity = twin.Update(Random<float>({c.count}, 3));
      twin.Run([&](Stream s, const Memory& m) {
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

}  // namespace
}  // namespace reprise::kernels
