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
#include "tests/graph/chain_oracle.h"
#include "tests/graph/session_testing.h"
#include "tests/testing/random_model.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using testing::Approximate;
using testing::Chain;
using testing::ChainGradient;
using testing::ChainSpec;
using testing::Epsilon;
using testing::IsOk;
using testing::Random;
using Kind = testing::ChainCall::Kind;
using Values = std::vector<std::vector<float>>;

constexpr int kWorldSizes[] = {1, 2, 3, 4, 5, 8};
constexpr float kLearningRate = 0.25f;

// Shards are cut at multiples of 128 bytes, so that all of a small parameter lies on rank 0, and each of 8 ranks has a
// part of the 469 elements of OddSizes only.
std::vector<ChainSpec> Chains() {
  return {
      {.name = "OddSizes",
       .parameters = {{"w0", "a", {67, 7}}, {"w1", "b", {7, 67}}, {"w2", "c", {3, 7}}},
       .calls = {{.kind = Kind::kLinear, .weight = "w0", .whole_unit = true},
                 {.kind = Kind::kLinear, .weight = "w1", .whole_unit = true},
                 {.kind = Kind::kLinear, .weight = "w2"}}},
      {.name = "EmptyShards",
       .parameters = {{"one", "a", {1, 1}},
                      {"scale", "b", {1}, DType::kFloat32},
                      {"shift", "b", {1}, DType::kBFloat16},
                      {.name = "none", .unit = "b", .shape = {0, 3}, .unused = true},
                      {"two", "c", {2, 1}}},
       .calls = {{.kind = Kind::kLinear, .weight = "one", .whole_unit = true},
                 {.kind = Kind::kAffine, .weight = "scale", .shift = "shift"},
                 {.kind = Kind::kLinear, .weight = "two"}},
       .width = 1},
      {.name = "FrozenUnit",
       .parameters = {{"w0", "a", {5, 7}},
                      {.name = "frozen", .unit = "b", .shape = {7, 5}, .trainable = false},
                      {"w2", "c", {3, 7}}},
       .calls = {{.kind = Kind::kLinear, .weight = "w0", .whole_unit = true},
                 {.kind = Kind::kLinearRelu, .weight = "frozen", .whole_unit = true},
                 {.kind = Kind::kLinear, .weight = "w2", .whole_unit = true}}},
      {.name = "TiedWeights",
       .parameters = {{"tied", "a", {7, 7}}, {"w1", "b", {7, 7}}, {"w2", "b", {3, 7}}},
       .calls = {{.kind = Kind::kLinear, .weight = "tied"},
                 {.kind = Kind::kLinear, .weight = "w1"},
                 {.kind = Kind::kLinear, .weight = "tied"},
                 {.kind = Kind::kLinear, .weight = "w2"}}},
      {.name = "RepeatedUnit",
       .parameters = {{"w0", "a", {5, 5}}, {"w1", "b", {5, 5}}, {"w2", "c", {3, 5}}},
       .calls = {{.kind = Kind::kLinear, .weight = "w0", .whole_unit = true},
                 {.kind = Kind::kLinear, .weight = "w0", .whole_unit = true},
                 {.kind = Kind::kLinear, .weight = "w1", .whole_unit = true},
                 {.kind = Kind::kLinearRelu, .weight = "w0", .whole_unit = true},
                 {.kind = Kind::kLinear, .weight = "w2", .whole_unit = true}},
       .width = 5},
      {.name = "CallsWithoutAUnit",
       .parameters = {{"w0", "a", {5, 7}}, {"w1", "b", {3, 5}}},
       .calls = {{.kind = Kind::kRelu},
                 {.kind = Kind::kLinear, .weight = "w0", .whole_unit = true},
                 {.kind = Kind::kRelu},
                 {.kind = Kind::kRelu},
                 {.kind = Kind::kLinear, .weight = "w1", .whole_unit = true}}},
      {.name = "MixedDtypesInOneUnit",
       .parameters = {{"scale", "a", {7}, DType::kFloat32},
                      {"shift", "a", {7}, DType::kBFloat16},
                      {"w0", "a", {7, 7}},
                      {"w1", "b", {3, 7}}},
       .calls = {{.kind = Kind::kLinear, .weight = "w0"},
                 {.kind = Kind::kAffine, .weight = "scale", .shift = "shift"},
                 {.kind = Kind::kLinear, .weight = "w1"}}},
      {.name = "Recompute",
       .parameters = {{"w0", "a", {5, 7}}, {"w1", "b", {7, 5}}, {"w2", "c", {3, 7}}},
       .calls = {{.kind = Kind::kLinearRelu, .weight = "w0", .whole_unit = true, .recompute = true},
                 {.kind = Kind::kRelu, .recompute = true},
                 {.kind = Kind::kLinearRelu, .weight = "w1", .whole_unit = true, .recompute = true},
                 {.kind = Kind::kLinear, .weight = "w2", .recompute = true}}},
      {.name = "UnusedParameters",
       .parameters = {{"w0", "a", {5, 7}},
                      {.name = "beside", .unit = "a", .shape = {3}, .unused = true},
                      {.name = "alone", .unit = "b", .shape = {67}, .dtype = DType::kFloat32, .unused = true},
                      {"w1", "c", {3, 5}}},
       .calls = {{.kind = Kind::kLinear, .weight = "w0"}, {.kind = Kind::kLinear, .weight = "w1", .whole_unit = true}}},
  };
}

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
  plan.transport = OneOf(random, {Transport::kDefault, Transport::kCopyEngine});
  plan.wire = OneOf(random, {DType::kFloat32, DType::kBFloat16});
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
                      plan.reduce == Reduce::kOncePerStep, ", carried ", plan.tail == Tail::kCarried, ", copy engine ",
                      plan.transport == Transport::kCopyEngine, ", wire ", Name(plan.wire));
}

// The values that compute reads.
std::vector<std::vector<double>> Weights(const Model& model, const Values& masters) {
  std::vector<std::vector<double>> weights(masters.size());
  for (size_t p = 0; p < masters.size(); ++p) {
    const bool rounds = model.parameters()[p].spec.dtype == DType::kBFloat16;
    for (const float value : masters[p]) weights[p].push_back(rounds ? float(BFloat16(value)) : value);
  }
  return weights;
}

// The mean over ranks and microbatches. Each gradient g_i within e_i is rounded to the wire's dtype, the ranks' are
// added there (default transport) or in float32, and both sums and the division are in float32:
//   error = (sum(e_i) + ((1 + ranks) u_wire + (ranks + microbatches + 2) 2^-24) sum(|g_i| + e_i)) / n.
struct Mean {
  double value = 0, error = 0, magnitude = 0;

  void Add(const Approximate& a) {
    value += a.value;
    error += a.error;
    magnitude += std::abs(a.value) + a.error;
  }
  Approximate Result(const Case& c, DType wire) const {
    const double n = c.world_size * c.microbatches;
    const double roundings = (1 + c.world_size) * Epsilon(wire) + (c.world_size + c.microbatches + 2) * 0x1p-24;
    return {value / n, (error + roundings * magnitude) / n};
  }
};

// What the step computes from these masters: a plain loop over microbatches and ranks.
ChainGradient Oracle(const Chain& chain, const Case& c, const Values& masters, int64_t step) {
  const std::vector<std::vector<double>> weights = Weights(chain.model, masters);
  Mean loss;
  std::vector<std::vector<Mean>> means;
  for (const std::vector<float>& parameter : masters) means.emplace_back(parameter.size());
  for (int m = 0; m < c.microbatches; ++m) {
    for (int rank = 0; rank < c.world_size; ++rank) {
      const ChainGradient one = Differentiate(chain, weights, MakeBatch(chain, step, m, rank));
      loss.Add(one.loss);
      for (size_t p = 0; p < means.size(); ++p) {
        for (size_t i = 0; i < means[p].size(); ++i) means[p][i].Add(one.parameters[p][i]);
      }
    }
  }
  ChainGradient result;
  result.loss = loss.Result(c, DType::kFloat32);
  for (const std::vector<Mean>& parameter : means) {
    result.parameters.emplace_back();
    for (const Mean& mean : parameter) result.parameters.back().push_back(mean.Result(c, c.plan.wire));
  }
  return result;
}

absl::Status RunMicrobatches(TrainSession& session, const Chain& chain, const Case& c, int64_t step) {
  REPRISE_RETURN_IF_ERROR(session.BeginStep({.learning_rate = kLearningRate, .microbatches = c.microbatches}));
  for (int m = 0; m < c.microbatches; ++m) {
    for (int rank = 0; rank < c.world_size; ++rank) {
      REPRISE_RETURN_IF_ERROR(CopyBatch(session, chain, rank, MakeBatch(chain, step, m, rank)));
    }
    REPRISE_RETURN_IF_ERROR(session.RunMicrobatch());
  }
  return absl::OkStatus();
}

void ExpectGradients(TrainSession& session, const Chain& chain, const ChainGradient& want, Values& gradients) {
  for (size_t p = 0; p < want.parameters.size(); ++p) {
    const ParameterSpec& spec = chain.model.parameters()[p].spec;
    gradients.emplace_back(want.parameters[p].size(), 0.0f);
    if (!spec.trainable) continue;
    REPRISE_ASSERT_OK_AND_ASSIGN(gradients[p], session.ReadGradient(spec.name));
    ASSERT_EQ(gradients[p].size(), want.parameters[p].size()) << spec.name;
    for (size_t i = 0; i < gradients[p].size(); ++i) {
      const auto& [value, error] = want.parameters[p][i];
      ASSERT_NEAR(gradients[p][i], value, error) << spec.name << " element " << i;
    }
  }
}

// after = before - rate * gradient, which rounds twice; a parameter without a gradient keeps its bits.
void ExpectUpdate(const Values& before, const Values& gradients, const Values& after) {
  for (size_t p = 0; p < before.size(); ++p) {
    ASSERT_EQ(after[p].size(), before[p].size());
    for (size_t i = 0; i < before[p].size(); ++i) {
      const double update = static_cast<double>(kLearningRate) * gradients[p][i];
      const double error = update == 0 ? 0 : 2 * 0x1p-24 * (std::abs(before[p][i]) + 2 * std::abs(update));
      ASSERT_NEAR(after[p][i], before[p][i] - update, error) << "parameter " << p << " element " << i;
    }
  }
}

void ExpectTrainingEqualsTheLoop(const ChainSpec& spec, const Case& c) {
  const Chain chain = MakeChain(spec, c.dtype);
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world,
                               CreateHostWorld({.size = c.world_size, .order = c.order, .seed = 5}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, ShardedParameters::Create(world, chain.model));
  ASSERT_THAT(parameters->Initialize(Normal(/*seed=*/3, /*stddev=*/0.25f)), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto session, TrainSession::Create(parameters, chain.model, chain.compute,
                                                                        {.run = {.plan = c.plan}, .optimizer = Sgd{}}));
  for (int64_t step = 0; step < 2; ++step) {
    SCOPED_TRACE(absl::StrCat("step ", step));
    // Each step starts from the values that training has, so that errors do not add up over steps.
    REPRISE_ASSERT_OK_AND_ASSIGN(const Values before, testing::ReadAll(*parameters));
    const ChainGradient want = Oracle(chain, c, before, step);
    ASSERT_THAT(RunMicrobatches(*session, chain, c, step), IsOk());
    Values gradients;
    ASSERT_NO_FATAL_FAILURE(ExpectGradients(*session, chain, want, gradients));
    ASSERT_THAT(session->EndStep(), IsOk());
    REPRISE_ASSERT_OK_AND_ASSIGN(const Values after, testing::ReadAll(*parameters));
    ASSERT_NO_FATAL_FAILURE(ExpectUpdate(before, gradients, after));
    const std::vector<StepMetrics> metrics = session->PollMetrics();
    ASSERT_EQ(metrics.size(), 1u);
    EXPECT_NEAR(metrics[0].loss, want.loss.value, want.loss.error);
  }
}

class OracleTest : public ::testing::TestWithParam<ChainSpec> {};
INSTANTIATE_TEST_SUITE_P(Chains, OracleTest, ::testing::ValuesIn(Chains()),
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
    REPRISE_ASSERT_OK_AND_ASSIGN(const Values masters, testing::ReadAll(*parameters));
    double size = 0, error = 0;
    for (const auto& parameter : Oracle(chain, {.plan = {.wire = dtype}}, masters, 0).parameters) {
      for (const Approximate& element : parameter) {
        size += std::abs(element.value);
        error += element.error;
      }
    }
    EXPECT_LT(error, (dtype == DType::kFloat32 ? 0x1p-8 : 0x1p-2) * size) << Name(dtype);
  }
}

// Small whole numbers: every sum is exact in either wire dtype and in any order, so that plans differ in no bit.
TEST(OracleExactTest, AveragesAreExactInEveryPlan) {
  Random random(7);
  for (const int size : kWorldSizes) {
    const testing::Dot dot = testing::MakeDot({.size = size});
    for (int draw = 0; draw < 12; ++draw) {
      const Case c = {.world_size = size, .microbatches = 2, .plan = DrawPlan(random, 2)};
      SCOPED_TRACE(Describe(c));
      REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, CreateHostWorld({.size = size}));
      REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, ShardedParameters::Create(world, dot.model));
      ASSERT_THAT(parameters->Initialize(Constant(1)), IsOk());
      REPRISE_ASSERT_OK_AND_ASSIGN(
          const auto session,
          TrainSession::Create(parameters, dot.model, dot.compute, {.run = {.plan = c.plan}, .optimizer = Sgd{}}));
      ASSERT_THAT(
          session->BeginStep(
              {.learning_rate = 0.5f, .microbatches = c.microbatches, .gradient_divisor = static_cast<double>(size)}),
          IsOk());
      for (int m = 0; m < c.microbatches; ++m) {
        for (int rank = 0; rank < size; ++rank) {
          const std::vector<float> x(size, static_cast<float>(rank + 1));
          ASSERT_THAT(session->CopyInput<float>(rank, dot.x, x), IsOk());
        }
        ASSERT_THAT(session->RunMicrobatch(), IsOk());
      }
      const float want = static_cast<float>(size + 1);  // 2 (1 + ... + size) / size
      REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> gradient, session->ReadGradient("w"));
      EXPECT_EQ(gradient, std::vector<float>(size, want));
      ASSERT_THAT(session->EndStep(), IsOk());
      REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> w, parameters->Read("w"));
      EXPECT_EQ(w, std::vector<float>(size, 1 - 0.5f * want));
    }
  }
}

}  // namespace
}  // namespace reprise
