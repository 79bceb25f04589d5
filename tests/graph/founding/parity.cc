// Sharded training is the unsharded loop's, within bounds of rounding alone.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "tests/graph/founding/founding.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using Kind = ChainCall::Kind;

constexpr float kLearningRate = 0.05f;

// The loop's own update, after which nothing comes from the training under test. Each of its two roundings is of a
// value no larger than |w| + 2 |update|.
void Update(ChainWeights& weights, const ChainGradient& gradient) {
  for (size_t p = 0; p < weights.size(); ++p) {
    for (size_t i = 0; i < weights[p].size(); ++i) {
      Approximate& w = weights[p][i];
      const auto& [value, error] = gradient.parameters[p][i];
      const double rate = kLearningRate;
      w.error += rate * error;
      w.error += 2 * 0x1p-24 * (std::abs(w.value) + w.error + 2 * rate * (std::abs(value) + error));
      w.value -= rate * value;
    }
  }
}

TEST_P(FoundingTest, FiveSgdStepsOfAnMlpHaveTheLossesOfTheUnshardedLoop) {
  constexpr int kSteps = 5;
  for (const int microbatches : {1, 3}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(
        const ChainTraining training,
        StartTraining(world_, MakeChain(Mlp(), DType::kFloat32), Options({.reduce_dtype = DType::kFloat32})));
    const Chain& chain = training.chain;
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto start, ReadAll(*training.parameters));
    ChainWeights weights = WeightsOf(chain, start);
    for (int64_t step = 0; step < kSteps; ++step) {
      ASSERT_THAT(training.session->BeginStep({.learning_rate = kLearningRate, .microbatches = microbatches}), IsOk());
      for (int m = 0; m < microbatches; ++m) {
        for (const int rank : world_->local_ranks()) {
          ASSERT_THAT(CopyBatch(*training.session, chain, rank, MakeBatch(chain, step, m, rank)), IsOk());
        }
        ASSERT_THAT(training.session->RunMicrobatch(), IsOk());
        for (const int rank : world_->local_ranks()) {
          const Approximate want = Differentiate(chain, weights, MakeBatch(chain, step, m, rank)).loss;
          REPRISE_ASSERT_OK_AND_ASSIGN(const auto loss, training.session->ReadOutput<float>(rank, chain.loss));
          ASSERT_NEAR(loss[0], want.value, want.error) << "step " << step << " microbatch " << m << " rank " << rank;
        }
      }
      ASSERT_THAT(training.session->EndStep(), IsOk());
      const Averaging averaging = {.world_size = ranks(), .microbatches = microbatches};
      Update(weights, MeanGradient(chain, weights, step, averaging));
    }
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto end, ReadAll(*training.parameters));
    double moved = 0, error = 0;
    for (size_t p = 0; p < end.size(); ++p) {
      for (size_t i = 0; i < end[p].size(); ++i) {
        ASSERT_NEAR(end[p][i], weights[p][i].value, weights[p][i].error) << "parameter " << p << " element " << i;
        moved += std::abs(weights[p][i].value - start[p][i]);
        error += weights[p][i].error;
      }
    }
    EXPECT_LT(error, 0x1p-8 * moved) << "or the bounds would let anything pass";
  }
}

// Frozen, tied, repeated, nested and odd units, calls without one, recomputation, unused parameters.
TEST_P(FoundingTest, EveryKindOfUnitTrainsAsTheUnshardedLoop) {
  const PlanOptions plans[] = {{.reduce_dtype = DType::kFloat32},
                               {},
                               {.weight_slots = 3, .reduce = Reduce::kOncePerStep},
                               {.reduce = Reduce::kOncePerStep, .reduce_dtype = DType::kFloat32}};
  for (const ChainSpec& spec : AllKindsOfChains()) {
    const bool on_host_only = std::any_of(spec.calls.begin(), spec.calls.end(),
                                          [](const ChainCall& call) { return call.kind == Kind::kAffine; });
    if (on_host_only) continue;
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const PlanOptions& plan : plans) {
        SCOPED_TRACE(absl::StrCat(spec.name, " ", Name(dtype), ", reduce_dtype ", Name(plan.reduce_dtype),
                                  ", once per step ", plan.reduce == Reduce::kOncePerStep));
        REPRISE_ASSERT_OK_AND_ASSIGN(const ChainTraining training,
                                     StartTraining(world_, MakeChain(spec, dtype), Options(plan)));
        for (int64_t step = 0; step < 2; ++step) {
          ChainStep done;
          ASSERT_NO_FATAL_FAILURE(
              RunCheckedStep(training, step, {.learning_rate = kLearningRate, .microbatches = 2}, done));
          ASSERT_NO_FATAL_FAILURE(ExpectSgdUpdate(done, kLearningRate));
        }
      }
    }
  }
}

}  // namespace
}  // namespace reprise::testing
