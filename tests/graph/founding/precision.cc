// Weights in bfloat16 that follow masters in float32.
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/graph/founding/founding.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

// All four weights are equal and each x is 1/4, so that the loss is the weight and each gradient is 1/4. A step takes
// 2^-10 from the masters. Below 1 bfloat16 has multiples of 2^-8, and ties go to the even one.
TEST_P(FoundingTest, TheNextForwardSeesTheUpdateOfTheMasters) {
  const int want[] = {0, 0, 0, 4, 4, 4, 8, 8, 8};  // 1024 times what the weight has lost after as many steps
  const Dot dot = MakeDot({.size = 4, .dtype = DType::kBFloat16});
  REPRISE_ASSERT_OK_AND_ASSIGN(const DotTraining training, StartTraining(world_, dot, Options()));
  for (size_t step = 0; step < std::size(want); ++step) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> masters, training.parameters->Read("w"));
    EXPECT_EQ(masters, std::vector<float>(4, 1 - static_cast<float>(step) / 1024));
    ASSERT_THAT(
        RunMicrobatches(training, {.learning_rate = 0x1p-8f, .microbatches = 2}, [](int, int) { return 0.25f; }),
        IsOk());
    for (const int rank : world_->local_ranks()) {
      REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> loss, training.session->ReadOutput<float>(rank, dot.loss));
      EXPECT_EQ(loss[0], 1 - static_cast<float>(want[step]) / 1024) << "step " << step << " rank " << rank;
    }
    ASSERT_THAT(training.session->EndStep(), IsOk());
  }
}

// AdamW in double on the gradients that training read, for one parameter.
class AdamWLoop {
 public:
  AdamWLoop(const AdamW& adamw, double learning_rate, size_t size)
      : adamw_(adamw), rate_(learning_rate), first_(size), magnitude_(size), second_(size) {}

  // Float32 keeps the first moment within 3 t roundings of the sum of its terms' magnitudes after t steps, and the
  // second, whose terms are positive, within 4 t of itself, of which the root halves the relative error. Corrections,
  // root, sum and quotient take 9 more, the product with the rate and the difference 2. The decay rounds four times.
  void ExpectStep(const ChainStep& step, size_t parameter) {
    ++t_;
    const double beta1 = adamw_.beta1, beta2 = adamw_.beta2;
    for (size_t i = 0; i < first_.size(); ++i) {
      const double gradient = step.gradients[parameter][i], before = step.before[parameter][i];
      first_[i] = beta1 * first_[i] + (1 - beta1) * gradient;
      magnitude_[i] = beta1 * magnitude_[i] + (1 - beta1) * std::abs(gradient);
      second_[i] = beta2 * second_[i] + (1 - beta2) * gradient * gradient;
      const double scale =
          rate_ / (1 - std::pow(beta1, t_)) / (std::sqrt(second_[i] / (1 - std::pow(beta2, t_))) + adamw_.epsilon);
      const double want = before * (1 - rate_ * adamw_.weight_decay) - scale * first_[i];
      const double error = 0x1p-24 * (4 * std::abs(before) + (5 * t_ + 11) * scale * magnitude_[i]);
      ASSERT_NEAR(step.after[parameter][i], want, error) << "parameter " << parameter << " element " << i;
    }
  }

 private:
  const AdamW adamw_;
  const double rate_;
  int t_ = 0;
  std::vector<double> first_, magnitude_, second_;
};

TEST_P(FoundingTest, MixedPrecisionAdamWEqualsItsFormula) {
  const AdamW adamw = {.weight_decay = 0.125f};
  const float rate = 0.01f;
  REPRISE_ASSERT_OK_AND_ASSIGN(const ChainTraining training,
                               StartTraining(world_, MakeChain(Mlp(), DType::kBFloat16), Options({}, adamw)));
  std::vector<AdamWLoop> loops;
  for (const Parameter& parameter : training.chain.model.parameters()) {
    loops.emplace_back(adamw, rate, static_cast<size_t>(NumElements(parameter.spec.shape)));
  }
  for (int64_t step = 0; step < 3; ++step) {
    SCOPED_TRACE(absl::StrCat("step ", step));
    ChainStep done;
    ASSERT_NO_FATAL_FAILURE(RunCheckedStep(training, step, {.learning_rate = rate, .microbatches = 2}, done));
    for (size_t p = 0; p < loops.size(); ++p) ASSERT_NO_FATAL_FAILURE(loops[p].ExpectStep(done, p));
  }
}

// Of a gradient of 0, AdamW leaves the decay alone: each step keeps 7/8, whose powers are exact.
TEST_P(FoundingTest, UnusedParametersHaveZeroGradientsAndDecay) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const Reduce reduce : {Reduce::kEveryMicrobatch, Reduce::kOncePerStep}) {
      SCOPED_TRACE(absl::StrCat(Name(dtype), ", once per step ", reduce == Reduce::kOncePerStep));
      REPRISE_ASSERT_OK_AND_ASSIGN(const DotTraining training,
                                   StartTraining(world_, MakeDot({.dtype = dtype, .with_others = true}),
                                                 Options({.reduce = reduce}, AdamW{.weight_decay = 0.25f})));
      float want = 1;
      for (int step = 0; step < 5; ++step) {
        ASSERT_THAT(RunMicrobatches(training, {.learning_rate = 0.5f, .microbatches = 4},
                                    [](int m, int rank) { return static_cast<float>(m + rank + 1); }),
                    IsOk());
        REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> gradient, training.session->ReadGradient("unused"));
        EXPECT_EQ(gradient, std::vector<float>(7, 0.0f));
        ASSERT_THAT(training.session->EndStep(), IsOk());
        want *= 0.875f;
        REPRISE_ASSERT_OK_AND_ASSIGN(const auto all, ReadAll(*training.parameters));
        EXPECT_LT(all[0][0], want) << "w has a positive gradient beside its decay";
        EXPECT_EQ(all[1], std::vector<float>(3, 1.0f)) << "frozen";
        EXPECT_EQ(all[2], std::vector<float>(7, want)) << "unused";
      }
    }
  }
}

}  // namespace
}  // namespace reprise::testing
