#include "reprise/graph/train_session.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "reprise/graph/host_world.h"
#include "tests/graph/session_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using testing::Batch;
using testing::IsOk;
using testing::MakeBatch;
using testing::MakeNetwork;
using testing::Network;
using testing::OracleGradient;
using testing::ReadAll;
using testing::RunMicrobatches;

using Parameters = std::vector<std::vector<double>>;

std::shared_ptr<World> MakeWorld(int size, ReplayOrder order = ReplayOrder::kIssue) {
  return *CreateHostWorld({.size = size, .order = order, .seed = 11});
}

// A network, its parameters and a session on them.
struct Trained {
  std::shared_ptr<ShardedParameters> parameters;
  std::unique_ptr<TrainSession> session;
};
absl::StatusOr<Trained> StartTraining(const std::shared_ptr<World>& world, const Network& network,
                                      const TrainOptions& options) {
  Trained trained;
  REPRISE_ASSIGN_OR_RETURN(trained.parameters, ShardedParameters::Create(world, network.model));
  REPRISE_RETURN_IF_ERROR(trained.parameters->Initialize(Normal(/*seed=*/3, /*stddev=*/0.4f)));
  REPRISE_ASSIGN_OR_RETURN(trained.session,
                           TrainSession::Create(trained.parameters, network.model, network.compute, options));
  return trained;
}

std::vector<Batch> BatchesOfStep(const Network& network, int world_size, int64_t step, int microbatches) {
  std::vector<Batch> batches;
  for (int m = 0; m < microbatches; ++m) {
    for (int rank = 0; rank < world_size; ++rank) batches.push_back(MakeBatch(network, step, m, rank));
  }
  return batches;
}

// Every value is what `dtype` can hold, as the weights that compute reads are.
Parameters Rounded(const Parameters& parameters, DType dtype) {
  Parameters rounded = parameters;
  for (std::vector<double>& parameter : rounded) {
    for (double& value : parameter) {
      value = dtype == DType::kBFloat16 ? static_cast<float>(BFloat16(static_cast<float>(value))) : value;
    }
  }
  return rounded;
}

Parameters ToDouble(const std::vector<std::vector<float>>& values) {
  Parameters result;
  for (const std::vector<float>& parameter : values) result.emplace_back(parameter.begin(), parameter.end());
  return result;
}

// Relative to the magnitude: a rounding of each gradient to the reduce dtype, and sums over microbatches and ranks in
// fp32, or in reduce dtype where the transport reduces in it.
double ReductionError(DType reduce_dtype, int world_size, int microbatches) {
  return (1 + world_size) * testing::Epsilon(reduce_dtype) + (world_size + microbatches) * 0x1p-24;
}

struct Case {
  std::string name;
  DType dtype = DType::kFloat32;
  bool tied = true;
  PlanOptions plan = {};
  int microbatches = 2;
};
std::vector<Case> Cases() {
  const PlanOptions exact = {.reduce_dtype = DType::kFloat32};
  std::vector<Case> cases = {{.name = "Float32", .plan = exact},
                             {.name = "BFloat16", .dtype = DType::kBFloat16},
                             {.name = "Float32UntiedReducedInBFloat16", .tied = false},
                             {.name = "BFloat16ThreeMicrobatches", .dtype = DType::kBFloat16, .microbatches = 3}};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const std::string suffix = dtype == DType::kFloat32 ? "Float32" : "BFloat16";
    PlanOptions plan = exact;
    plan.residency = Residency::kOff;
    cases.push_back({.name = "NoResidency" + suffix, .dtype = dtype, .plan = plan});
    plan = exact;
    plan.microbatches_per_graph = 2;
    cases.push_back({.name = "TwoPerGraph" + suffix, .dtype = dtype, .plan = plan, .microbatches = 4});
    plan = exact;
    plan.tail = Tail::kCarried;
    cases.push_back({.name = "CarriedTail" + suffix, .dtype = dtype, .plan = plan, .microbatches = 3});
    plan = exact;
    plan.reduce = Reduce::kOncePerStep;
    cases.push_back({.name = "OncePerStep" + suffix, .dtype = dtype, .plan = plan, .microbatches = 3});
    plan.transports = EveryUnit(Transport::kCopyEngine);
    cases.push_back({.name = "OncePerStepExchange" + suffix, .dtype = dtype, .plan = plan, .microbatches = 3});
    plan = exact;
    plan.transports = EveryUnit(Transport::kSymmetric);
    plan.weight_slots = 8;
    cases.push_back({.name = "ExchangeManySlots" + suffix, .dtype = dtype, .plan = plan});
  }
  return cases;
}

class TrainSessionTest : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Plans, TrainSessionTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(TrainSessionTest, GradientsAndStepsEqualAnUnshardedLoop) {
  const Case& c = GetParam();
  const Network network = MakeNetwork({.dtype = c.dtype, .tied = c.tied});
  const float rate = 0.5f;
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    SCOPED_TRACE(absl::StrCat("world size ", size));
    REPRISE_ASSERT_OK_AND_ASSIGN(
        const Trained trained, StartTraining(MakeWorld(size), network, {.run = {.plan = c.plan}, .optimizer = Sgd{}}));
    const double error = testing::GradientError(network) + ReductionError(c.plan.reduce_dtype, size, c.microbatches);
    for (int64_t step = 0; step < 2; ++step) {
      // The oracle starts each step from the values that training has, so that errors do not add up over steps.
      REPRISE_ASSERT_OK_AND_ASSIGN(const auto before, ReadAll(*trained.parameters));
      const OracleGradient want = testing::Differentiate(network, Rounded(ToDouble(before), c.dtype),
                                                         BatchesOfStep(network, size, step, c.microbatches));
      ASSERT_THAT(RunMicrobatches(*trained.session, network, *trained.parameters->world(), step,
                                  {.learning_rate = rate, .microbatches = c.microbatches}),
                  IsOk());
      const double divisor = size * c.microbatches;
      std::vector<std::vector<float>> gradients(before.size());
      for (size_t p = 0; p < before.size(); ++p) {
        const ParameterSpec& spec = network.model.parameters()[p].spec;
        if (!spec.trainable) continue;
        REPRISE_ASSERT_OK_AND_ASSIGN(gradients[p], trained.session->ReadGradient(spec.name));
        ASSERT_EQ(gradients[p].size(), want.gradients[p].size());
        for (size_t i = 0; i < gradients[p].size(); ++i) {
          ASSERT_NEAR(gradients[p][i], want.gradients[p][i] / divisor, error * want.magnitude[p] / divisor)
              << spec.name << " element " << i << " step " << step;
        }
      }
      ASSERT_THAT(trained.session->EndStep(), IsOk());
      REPRISE_ASSERT_OK_AND_ASSIGN(const auto after, ReadAll(*trained.parameters));
      for (size_t p = 0; p < before.size(); ++p) {
        for (size_t i = 0; i < before[p].size(); ++i) {
          const double update = gradients[p].empty() ? 0 : static_cast<double>(rate) * gradients[p][i];
          ASSERT_NEAR(after[p][i], before[p][i] - update, 4 * 0x1p-24 * (std::abs(before[p][i]) + std::abs(update)));
        }
      }
      const std::vector<StepMetrics> metrics = trained.session->PollMetrics();
      ASSERT_EQ(metrics.size(), 1u);
      EXPECT_EQ(metrics[0].step, step);
      EXPECT_NEAR(metrics[0].loss, want.loss / divisor, testing::GradientError(network) * want.loss / divisor);
    }
  }
}

TEST_P(TrainSessionTest, AdversarialOrdersGiveTheSameBits) {
  const Case& c = GetParam();
  const Network network = MakeNetwork({.dtype = c.dtype, .tied = c.tied});
  std::vector<std::vector<std::vector<float>>> results;
  for (const ReplayOrder order : {ReplayOrder::kIssue, ReplayOrder::kAdversarial}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const Trained trained,
                                 StartTraining(MakeWorld(3, order), network, {.run = {.plan = c.plan}}));
    for (int64_t step = 0; step < 3; ++step) {
      ASSERT_THAT(RunMicrobatches(*trained.session, network, *trained.parameters->world(), step,
                                  {.learning_rate = 0.01f, .microbatches = c.microbatches}),
                  IsOk());
      ASSERT_THAT(trained.session->EndStep(), IsOk());
    }
    REPRISE_ASSERT_OK_AND_ASSIGN(results.emplace_back(), ReadAll(*trained.parameters));
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST_P(TrainSessionTest, EagerAndGraphExecutionGiveTheSameBits) {
  const Case& c = GetParam();
  const Network network = MakeNetwork({.dtype = c.dtype, .tied = c.tied});
  std::vector<std::vector<std::vector<float>>> results;
  for (const Execution execution : {Execution::kGraph, Execution::kEager}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(
        const Trained trained,
        StartTraining(MakeWorld(2), network, {.run = {.plan = c.plan, .execution = execution, .check_writes = true}}));
    for (int64_t step = 0; step < 2; ++step) {
      ASSERT_THAT(RunMicrobatches(*trained.session, network, *trained.parameters->world(), step,
                                  {.learning_rate = 0.01f, .microbatches = c.microbatches}),
                  IsOk());
      ASSERT_THAT(trained.session->EndStep(), IsOk());
    }
    REPRISE_ASSERT_OK_AND_ASSIGN(results.emplace_back(), ReadAll(*trained.parameters));
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST_P(TrainSessionTest, DiscardedStepsLeaveNothingBehind) {
  const Case& c = GetParam();
  const Network network = MakeNetwork({.dtype = c.dtype, .tied = c.tied});
  const StepValues values = {.learning_rate = 0.01f, .microbatches = c.microbatches};
  const int per_graph = c.plan.microbatches_per_graph.value_or(1);
  REPRISE_ASSERT_OK_AND_ASSIGN(const Trained plain, StartTraining(MakeWorld(2), network, {.run = {.plan = c.plan}}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const Trained other, StartTraining(MakeWorld(2), network, {.run = {.plan = c.plan}}));
  for (int64_t step = 0; step < 3; ++step) {
    // At every point of a step: before, between and after its microbatches, a graph half staged among them.
    for (int stop = 0; stop <= c.microbatches; ++stop) {
      ASSERT_THAT(other.session->BeginStep(values), IsOk());
      for (int m = 0; m < stop; ++m) {
        for (int rank = 0; rank < 2; ++rank) {
          ASSERT_THAT(testing::CopyBatch(*other.session, network, rank, MakeBatch(network, 77 + step, m, rank)),
                      IsOk());
        }
        ASSERT_THAT(other.session->RunMicrobatch(), IsOk());
      }
      if (stop < c.microbatches && stop % per_graph != 0) {
        ASSERT_THAT(other.session->CopyInput(0, network.labels, std::vector<int32_t>(network.rows, 0)), IsOk());
      }
      ASSERT_THAT(other.session->DiscardGradients(), IsOk());
    }
    for (const Trained* trained : {&plain, &other}) {
      ASSERT_THAT(RunMicrobatches(*trained->session, network, *trained->parameters->world(), step, values), IsOk());
      ASSERT_THAT(trained->session->EndStep(), IsOk());
    }
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto want, ReadAll(*plain.parameters));
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto got, ReadAll(*other.parameters));
    EXPECT_EQ(want, got) << "step " << step;
    const auto want_metrics = plain.session->PollMetrics(), got_metrics = other.session->PollMetrics();
    ASSERT_EQ(want_metrics.size(), 1u);
    ASSERT_EQ(got_metrics.size(), 1u);
    EXPECT_EQ(got_metrics[0].step, step) << "discarded steps have no number";
    EXPECT_EQ(got_metrics[0].loss, want_metrics[0].loss);
    EXPECT_EQ(got_metrics[0].gradient_norm, want_metrics[0].gradient_norm);
  }
}

TEST_P(TrainSessionTest, ReadingAGradientDoesNotChangeTheStep) {
  const Case& c = GetParam();
  const Network network = MakeNetwork({.dtype = c.dtype});
  std::vector<std::vector<std::vector<float>>> results;
  for (const bool reads : {false, true}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const Trained trained,
                                 StartTraining(MakeWorld(2), network, {.run = {.plan = c.plan}}));
    ASSERT_THAT(RunMicrobatches(*trained.session, network, *trained.parameters->world(), 0,
                                {.learning_rate = 0.1f, .microbatches = c.microbatches}),
                IsOk());
    for (int i = 0; i < 2 && reads; ++i) ASSERT_THAT(trained.session->ReadGradient("layer1.weight"), IsOk());
    ASSERT_THAT(trained.session->EndStep(), IsOk());
    REPRISE_ASSERT_OK_AND_ASSIGN(results.emplace_back(), ReadAll(*trained.parameters));
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace reprise
