// A model trained by sharded replay equals the same model in a plain loop, over world sizes, microbatches, dtypes, the
// ways a model can use its parameters, and plans.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/graph/host_world.h"
#include "tests/graph/chain_training.h"
#include "tests/graph/session_testing.h"
#include "tests/testing/random_model.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using testing::Approximate;
using testing::Chain;
using testing::ChainGradient;
using testing::ChainSpec;
using testing::ChainStep;
using testing::ChainTraining;
using testing::IsOk;
using testing::Random;

constexpr int kWorldSizes[] = {1, 2, 3, 4, 5, 8};

struct Case {
  int world_size = 1;
  int microbatches = 1;
  DType dtype = DType::kFloat32;
  ReplayOrder order = ReplayOrder::kIssue;
  PlanOptions plan = {};
};

template <class T>
T OneOf(Random& random, std::initializer_list<T> values) {
  return values.begin()[random.Below(static_cast<int64_t>(values.size()))];
}

PlanOptions DrawPlan(Random& random, int microbatches) {
  PlanOptions plan;
  plan.weight_slots = static_cast<int>(1 + random.Below(3));
  plan.gradient_slots = static_cast<int>(1 + random.Below(3));
  plan.microbatches_per_graph = OneOf(random, {1, microbatches});
  plan.residency = OneOf(random, {Residency::kKeep, Residency::kOff});
  plan.reduce = OneOf(random, {Reduce::kEveryMicrobatch, Reduce::kOncePerStep});
  // A carried tail needs a reduction in every graph.
  if (plan.reduce == Reduce::kEveryMicrobatch) plan.tail = OneOf(random, {Tail::kInGraph, Tail::kCarried});
  plan.sum = OneOf(random, {Sum::kNccl, Sum::kRankOrder});
  plan.reduce_dtype = OneOf(random, {DType::kFloat32, DType::kBFloat16});
  return plan;
}

// Plan and order are drawn anew for each world size, number of microbatches and dtype.
std::vector<Case> Cases(uint64_t seed) {
  std::vector<Case> cases;
  Random random(seed);
  for (const int size : kWorldSizes) {
    for (const int microbatches : {1, 2, 3}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        const PlanOptions plan = DrawPlan(random, microbatches);
        const ReplayOrder order = OneOf(random, {ReplayOrder::kIssue, ReplayOrder::kAdversarial});
        cases.push_back({size, microbatches, dtype, order, plan});
      }
    }
  }
  return cases;
}

std::string Describe(const Case& c) {
  const PlanOptions& plan = c.plan;
  return absl::StrCat("world size ", c.world_size, ", microbatches ", c.microbatches, ", ", Name(c.dtype),
                      ", adversarial ", c.order == ReplayOrder::kAdversarial, ", weight slots ", *plan.weight_slots,
                      ", gradient slots ", *plan.gradient_slots, ", per graph ", *plan.microbatches_per_graph,
                      ", residency ", plan.residency == Residency::kKeep, ", once per step ",
                      plan.reduce == Reduce::kOncePerStep, ", carried ", plan.tail == Tail::kCarried, ", sum ",
                      Name(*plan.sum), ", reduce_dtype ", Name(plan.reduce_dtype));
}

void ExpectTrainingEqualsTheLoop(const ChainSpec& spec, const Case& c) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world,
                               CreateHostWorld({.size = c.world_size, .order = c.order, .seed = 5}));
  REPRISE_ASSERT_OK_AND_ASSIGN(
      const ChainTraining training,
      StartTraining(world, MakeChain(spec, c.dtype), {.run = {.plan = c.plan}, .optimizer = Sgd{}}));
  const StepValues values = {.learning_rate = 0.25f, .microbatches = c.microbatches};
  for (int64_t step = 0; step < 2; ++step) {
    SCOPED_TRACE(absl::StrCat("step ", step));
    ChainStep done;
    ASSERT_NO_FATAL_FAILURE(RunCheckedStep(training, step, values, done));
    ASSERT_NO_FATAL_FAILURE(ExpectSgdUpdate(done, *values.learning_rate));
  }
}

class OracleTest : public ::testing::TestWithParam<ChainSpec> {};
INSTANTIATE_TEST_SUITE_P(Chains, OracleTest, ::testing::ValuesIn(testing::AllKindsOfChains()),
                         [](const auto& info) { return info.param.name; });

TEST_P(OracleTest, TrainingEqualsAnUnshardedLoop) {
  uint64_t seed = 0;
  for (const char letter : GetParam().name) seed = seed * 31 + static_cast<unsigned char>(letter);
  for (uint64_t draw = 0; draw < 3; ++draw) {
    for (const Case& c : Cases(seed + draw)) {
      SCOPED_TRACE(Describe(c));
      ASSERT_NO_FATAL_FAILURE(ExpectTrainingEqualsTheLoop(GetParam(), c));
    }
  }
}

// A bound as large as the gradient would let anything pass. Chains in float32 may have a parameter in bfloat16, so that
// their limit is one rounding to it.
TEST_P(OracleTest, BoundsAreSmallBesideTheGradients) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Chain chain = MakeChain(GetParam(), dtype);
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, CreateHostWorld({}));
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, ShardedParameters::Create(world, chain.model));
    ASSERT_THAT(parameters->Initialize(Normal(/*seed=*/3, /*stddev=*/0.25f)), IsOk());
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto masters, testing::ReadAll(*parameters));
    double size = 0, error = 0;
    const ChainGradient gradient = MeanGradient(chain, WeightsOf(chain, masters), 0, {.reduce_dtype = dtype});
    for (const auto& parameter : gradient.parameters) {
      for (const Approximate& element : parameter) {
        size += std::abs(element.value);
        error += element.error;
      }
    }
    EXPECT_LT(error, (dtype == DType::kFloat32 ? 0x1p-8 : 0x1p-2) * size) << Name(dtype);
  }
}

// Small whole numbers: every sum is exact in either reduce dtype and in any order, so that plans differ in no bit.
TEST(OracleExactTest, AveragesAreExactInEveryPlan) {
  Random random(7);
  for (const int size : kWorldSizes) {
    const testing::Dot dot = testing::MakeDot({.size = size});
    for (int draw = 0; draw < 12; ++draw) {
      const Case c = {.world_size = size, .microbatches = 2, .plan = DrawPlan(random, 2)};
      SCOPED_TRACE(Describe(c));
      REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, CreateHostWorld({.size = size}));
      REPRISE_ASSERT_OK_AND_ASSIGN(const testing::DotTraining training,
                                   testing::StartTraining(world, dot, {.run = {.plan = c.plan}, .optimizer = Sgd{}}));
      ASSERT_THAT(
          testing::RunMicrobatches(
              training,
              {.learning_rate = 0.5f, .microbatches = c.microbatches, .gradient_divisor = static_cast<double>(size)},
              [](int, int rank) { return rank + 1.0f; }),
          IsOk());
      const float want = static_cast<float>(size + 1);  // 2 (1 + ... + size) / size
      REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> gradient, training.session->ReadGradient("w"));
      EXPECT_EQ(gradient, std::vector<float>(size, want));
      ASSERT_THAT(training.session->EndStep(), IsOk());
      REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> w, training.parameters->Read("w"));
      EXPECT_EQ(w, std::vector<float>(size, 1 - 0.5f * want));
    }
  }
}

}  // namespace
}  // namespace reprise
