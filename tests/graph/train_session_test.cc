#include "reprise/graph/train_session.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "reprise/graph/host_world.h"
#include "tests/graph/session_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using testing::Batch;
using testing::Dot;
using testing::IsOk;
using testing::MakeBatch;
using testing::MakeDot;
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

// Relative to the magnitude: a rounding of each gradient to the wire, and sums over microbatches and ranks in fp32, or
// in wire dtype where the transport reduces in it.
double ReductionError(DType wire, int world_size, int microbatches) {
  return (1 + world_size) * testing::Epsilon(wire) + (world_size + microbatches) * 0x1p-24;
}

struct Case {
  std::string name;
  DType dtype = DType::kFloat32;
  bool tied = true;
  PlanOptions plan = {};
  int microbatches = 2;
};
std::vector<Case> Cases() {
  const PlanOptions exact = {.wire = DType::kFloat32};
  std::vector<Case> cases = {{.name = "Float32", .plan = exact},
                             {.name = "BFloat16", .dtype = DType::kBFloat16},
                             {.name = "Float32UntiedBFloat16Wire", .tied = false},
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
    plan = exact;
    plan.transport = Transport::kSymmetric;
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
    const double error = testing::GradientError(network) + ReductionError(c.plan.wire, size, c.microbatches);
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
        ASSERT_THAT(other.session->CopyInput<int32_t>(0, network.labels, std::vector<int32_t>(network.rows, 0)),
                    IsOk());
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

// ---- exact numbers ----

absl::StatusOr<Trained> StartDot(const std::shared_ptr<World>& world, const Dot& dot, TrainOptions options,
                                 DType master = DType::kFloat32) {
  Trained trained;
  REPRISE_ASSIGN_OR_RETURN(trained.parameters, ShardedParameters::Create(world, dot.model, master));
  REPRISE_RETURN_IF_ERROR(trained.parameters->Initialize(Constant(1)));
  REPRISE_ASSIGN_OR_RETURN(trained.session,
                           TrainSession::Create(trained.parameters, dot.model, dot.compute, std::move(options)));
  return trained;
}

// `x_of(microbatch, rank)` fills x.
absl::Status RunDotStep(const Trained& trained, const Dot& dot, const StepValues& values,
                        const std::function<float(int, int)>& x_of) {
  REPRISE_RETURN_IF_ERROR(trained.session->BeginStep(values));
  const size_t size = static_cast<size_t>(NumElements(dot.model.tensor(dot.x).spec.shape));
  for (int m = 0; m < values.microbatches; ++m) {
    for (int rank : trained.parameters->world()->local_ranks()) {
      REPRISE_RETURN_IF_ERROR(trained.session->CopyInput<float>(rank, dot.x, std::vector<float>(size, x_of(m, rank))));
    }
    REPRISE_RETURN_IF_ERROR(trained.session->RunMicrobatch());
  }
  return absl::OkStatus();
}

TEST(TrainSessionExactTest, FoundingAverages) {
  for (const int size : {1, 2, 3, 4, 8}) {
    const Dot dot = MakeDot({.size = size});
    REPRISE_ASSERT_OK_AND_ASSIGN(const Trained trained, StartDot(MakeWorld(size), dot, {}));
    ASSERT_THAT(RunDotStep(trained, dot, {.microbatches = 2, .gradient_divisor = static_cast<double>(size)},
                           [](int, int rank) { return rank + 1.0f; }),
                IsOk());
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> gradient, trained.session->ReadGradient("w"));
    EXPECT_EQ(gradient, std::vector<float>(size, size + 1.0f));
  }
}

TEST(TrainSessionExactTest, DivisorIsTheMeanUnlessGiven) {
  const Dot dot = MakeDot();
  for (const float loss_scale : {1.0f, 1024.0f, 0x1p-8f}) {
    for (const auto& [divisor, want] : {std::pair(0.0, 5.0f), std::pair(1.0, 30.0f), std::pair(60.0, 0.5f)}) {
      REPRISE_ASSERT_OK_AND_ASSIGN(const Trained trained,
                                   StartDot(MakeWorld(3), dot, {.optimizer = Sgd{}, .loss_scale = loss_scale}));
      // The sum over 2 microbatches and 3 ranks is (0 + 1 + 2) * 2 + 3 * 8 = 30.
      ASSERT_THAT(RunDotStep(trained, dot, {.learning_rate = 0.25f, .microbatches = 2, .gradient_divisor = divisor},
                             [](int m, int rank) { return 8.0f * m + rank; }),
                  IsOk());
      REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> gradient, trained.session->ReadGradient("w"));
      EXPECT_EQ(gradient, std::vector<float>(5, want));
      ASSERT_THAT(trained.session->EndStep(), IsOk());
      REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> w, trained.parameters->Read("w"));
      EXPECT_EQ(w, std::vector<float>(5, 1 - 0.25f * want));
      const std::vector<StepMetrics> metrics = trained.session->PollMetrics();
      ASSERT_EQ(metrics.size(), 1u);
      EXPECT_EQ(metrics[0].loss_scale, loss_scale);
      EXPECT_EQ(metrics[0].loss, 25.0f) << "mean of sum over 5 of w * x";
      EXPECT_FLOAT_EQ(metrics[0].gradient_norm, want * std::sqrt(5.0f));
      EXPECT_FALSE(metrics[0].skipped);
    }
  }
}

TEST(TrainSessionExactTest, ValuesOfEachStepReachTheReplay) {
  const Dot dot = MakeDot();
  REPRISE_ASSERT_OK_AND_ASSIGN(const Trained trained, StartDot(MakeWorld(2), dot, {.optimizer = Sgd{}}));
  float want = 1;
  for (const float rate : {0.5f, 0.0f, 0.125f}) {
    for (const int microbatches : {1, 3, 2}) {
      ASSERT_THAT(RunDotStep(trained, dot, {.learning_rate = rate, .microbatches = microbatches},
                             [](int m, int) { return static_cast<float>(2 * m); }),
                  IsOk());
      ASSERT_THAT(trained.session->EndStep(), IsOk());
      want -= rate * static_cast<float>(microbatches - 1);
      REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> w, trained.parameters->Read("w"));
      EXPECT_EQ(w, std::vector<float>(5, want));
    }
  }
}

TEST(TrainSessionExactTest, ClipsTheNormOfTheDividedGradient) {
  const Dot dot = MakeDot({.size = 4});
  REPRISE_ASSERT_OK_AND_ASSIGN(const Trained trained,
                               StartDot(MakeWorld(2), dot, {.optimizer = Sgd{}, .clip_norm = 2.0f}));
  // The gradient is 8 in each of 4 elements: its norm is 16, so that it is clipped to 1 in each.
  ASSERT_THAT(RunDotStep(trained, dot, {.learning_rate = 0.5f}, [](int, int) { return 8.0f; }), IsOk());
  ASSERT_THAT(trained.session->EndStep(), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> w, trained.parameters->Read("w"));
  EXPECT_EQ(w, std::vector<float>(4, 0.5f));
  EXPECT_EQ(trained.session->PollMetrics().at(0).gradient_norm, 16.0f);
}

TEST(TrainSessionExactTest, NonFiniteGradientsSkipTheUpdateAndDoNotLeak) {
  const Dot dot = MakeDot();
  REPRISE_ASSERT_OK_AND_ASSIGN(const Trained trained, StartDot(MakeWorld(2), dot, {.optimizer = Sgd{}}));
  for (const float x : {std::nanf(""), 1.0f}) {
    ASSERT_THAT(RunDotStep(trained, dot, {.learning_rate = 0.5f}, [&](int, int) { return x; }), IsOk());
    ASSERT_THAT(trained.session->EndStep(), IsOk());
  }
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> w, trained.parameters->Read("w"));
  EXPECT_EQ(w, std::vector<float>(5, 0.5f)) << "only the second step counts";
  const std::vector<StepMetrics> metrics = trained.session->PollMetrics();
  ASSERT_EQ(metrics.size(), 2u);
  EXPECT_TRUE(metrics[0].skipped);
  EXPECT_FALSE(metrics[1].skipped);
}

TEST(TrainSessionExactTest, FrozenAndUnusedParametersStay) {
  const Dot dot = MakeDot({.with_others = true});
  REPRISE_ASSERT_OK_AND_ASSIGN(const Trained trained,
                               StartDot(MakeWorld(3), dot, {.optimizer = Sgd{.momentum = 0.5f}}));
  ASSERT_THAT(RunDotStep(trained, dot, {.learning_rate = 0.5f}, [](int, int) { return 2.0f; }), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> gradient, trained.session->ReadGradient("unused"));
  EXPECT_EQ(gradient, std::vector<float>(7, 0.0f));
  ASSERT_THAT(trained.session->EndStep(), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto all, ReadAll(*trained.parameters));
  EXPECT_EQ(all, (std::vector<std::vector<float>>{std::vector<float>(5, 0.0f), std::vector<float>(3, 1.0f),
                                                  std::vector<float>(7, 1.0f)}));
}

TEST(TrainSessionExactTest, WarmUpChangesNothing) {
  const Dot dot = MakeDot({.with_others = true});
  REPRISE_ASSERT_OK_AND_ASSIGN(const Trained trained, StartDot(MakeWorld(2), dot, {}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto all, ReadAll(*trained.parameters));
  for (const std::vector<float>& parameter : all) EXPECT_THAT(parameter, ::testing::Each(1.0f));
  EXPECT_TRUE(trained.session->PollMetrics().empty());
  const CaptureReport& capture = trained.session->capture();
  const MemoryPlan& memory = trained.session->plan().memory;
  EXPECT_EQ(capture.persistent_bytes, memory.persistent_bytes());
  EXPECT_EQ(capture.transient_bytes, memory.transient_bytes());
  EXPECT_GE(capture.seconds, 0);
}

TEST(TrainSessionExactTest, ComputeFunctionsRunOnlyBeforeTheFirstStepOfAGraph) {
  const Dot dot = MakeDot();
  std::atomic<int> calls = 0;  // ranks run side by side
  ComputeTable compute = dot.compute;
  compute[dot.call].forward = [&calls, forward = dot.compute.at(dot.call).forward](ComputeContext& c) {
    calls += c.rank() == 0 ? 1 : 0;
    return forward(c);
  };
  Dot counted = dot;
  counted.compute = compute;
  REPRISE_ASSERT_OK_AND_ASSIGN(const Trained trained, StartDot(MakeWorld(2), counted, {}));
  const int recorded = calls;
  EXPECT_GE(recorded, 3) << "twice eagerly and once per graph";
  ASSERT_THAT(RunDotStep(trained, counted, {.microbatches = 4}, [](int, int) { return 1.0f; }), IsOk());
  ASSERT_THAT(trained.session->EndStep(), IsOk());
  EXPECT_EQ(calls, recorded);
}

TEST(TrainSessionExactTest, AdamWMatchesItsFormula) {
  const Dot dot = MakeDot();
  const AdamW adamw = {.beta1 = 0.5f, .beta2 = 0.75f, .epsilon = 1e-3f, .weight_decay = 0.25f};
  REPRISE_ASSERT_OK_AND_ASSIGN(const Trained trained, StartDot(MakeWorld(4), dot, {.optimizer = adamw}));
  double w = 1, m = 0, v = 0;
  for (int t = 1; t <= 4; ++t) {
    const double gradient = t, rate = 0.125;
    ASSERT_THAT(RunDotStep(trained, dot, {.learning_rate = 0.125f}, [&](int, int) { return static_cast<float>(t); }),
                IsOk());
    ASSERT_THAT(trained.session->EndStep(), IsOk());
    m = 0.5 * m + 0.5 * gradient;
    v = 0.75 * v + 0.25 * gradient * gradient;
    w -= rate * 0.25 * w + rate * m / (1 - std::pow(0.5, t)) / (std::sqrt(v / (1 - std::pow(0.75, t))) + 1e-3f);
  }
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> got, trained.parameters->Read("w"));
  for (const float value : got) EXPECT_NEAR(value, w, 4 * 16 * 0x1p-24) << "16 roundings of values up to 1 per step";
}

// ---- results ----

TEST(TrainSessionResultsTest, PollsTheLastStepsOldestFirst) {
  const Dot dot = MakeDot();
  REPRISE_ASSERT_OK_AND_ASSIGN(const Trained trained, StartDot(MakeWorld(1), dot, {.optimizer = Sgd{}}));
  int64_t next = 0;
  for (const int steps : {1, 3, static_cast<int>(kMetricsRingSize), static_cast<int>(2 * kMetricsRingSize + 5)}) {
    for (int i = 0; i < steps; ++i) {
      ASSERT_THAT(RunDotStep(trained, dot, {}, [&](int, int) { return static_cast<float>(next + i); }), IsOk());
      ASSERT_THAT(trained.session->EndStep(), IsOk());
    }
    next += steps;
    const std::vector<StepMetrics> metrics = trained.session->PollMetrics();
    ASSERT_EQ(static_cast<int64_t>(metrics.size()), std::min<int64_t>(steps, kMetricsRingSize));
    for (size_t i = 0; i < metrics.size(); ++i) {
      const int64_t step = next - static_cast<int64_t>(metrics.size() - i);
      EXPECT_EQ(metrics[i].step, step);
      EXPECT_EQ(metrics[i].loss, 5.0f * static_cast<float>(step));
    }
    EXPECT_TRUE(trained.session->PollMetrics().empty()) << "each step is returned once";
  }
}

TEST(TrainSessionResultsTest, ReadsOutputsAndInputGradientsOfTheLastMicrobatch) {
  const Dot dot = MakeDot({.keep_gradient = true});
  REPRISE_ASSERT_OK_AND_ASSIGN(const Trained trained, StartDot(MakeWorld(2), dot, {.loss_scale = 4}));
  ASSERT_THAT(trained.parameters->Write("w", {1, 2, 3, 4, 5}), IsOk());
  ASSERT_THAT(RunDotStep(trained, dot, {.microbatches = 2}, [](int m, int rank) { return 10.0f * m + rank; }), IsOk());
  for (int rank = 0; rank < 2; ++rank) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto loss, trained.session->ReadOutput<float>(rank, dot.loss));
    EXPECT_EQ(loss, std::vector<float>{15.0f * (10 + rank)});
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto gradient, trained.session->ReadInputGradient<float>(rank, dot.x));
    EXPECT_EQ(gradient, (std::vector<float>{4, 8, 12, 16, 20})) << "not divided by the loss scale";
  }
}

TEST(TrainSessionResultsTest, ReadingAGradientDoesNotChangeTheStep) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
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
}

TEST(TrainSessionResultsTest, ExternalTensorsAreUsedInPlace) {
  const Dot dot = MakeDot({.size = 4, .external = true});
  alignas(16) float x[2][4];
  std::fill_n(&x[0][0], 8, 0.0f);
  RunOptions run;
  for (int rank = 0; rank < 2; ++rank) run.external.push_back({rank, dot.x, x[rank], sizeof(x[rank])});
  REPRISE_ASSERT_OK_AND_ASSIGN(const Trained trained, StartDot(MakeWorld(2), dot, {.run = run}));
  std::iota(&x[0][0], &x[0][0] + 8, 1.0f);
  ASSERT_THAT(trained.session->BeginStep({.gradient_divisor = 1}), IsOk());
  ASSERT_THAT(trained.session->RunMicrobatch(), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto gradient, trained.session->ReadGradient("w"));
  EXPECT_EQ(gradient, (std::vector<float>{6, 8, 10, 12}));
}

TEST(TrainSessionResultsTest, ParametersMayChangeBetweenSteps) {
  const Dot dot = MakeDot();
  REPRISE_ASSERT_OK_AND_ASSIGN(const Trained trained, StartDot(MakeWorld(2), dot, {}));
  for (const float value : {3.0f, 7.0f}) {
    ASSERT_THAT(trained.parameters->Write("w", std::vector<float>(5, value)), IsOk());
    ASSERT_THAT(RunDotStep(trained, dot, {}, [](int, int) { return 1.0f; }), IsOk());
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto loss, trained.session->ReadOutput<float>(1, dot.loss));
    EXPECT_EQ(loss, std::vector<float>{5 * value}) << "gathered weights of an older version are not used";
    ASSERT_THAT(trained.session->EndStep(), IsOk());
  }
  const int64_t version = trained.parameters->version();
  ASSERT_THAT(trained.session->MarkParametersChanged(), IsOk());
  EXPECT_GT(trained.parameters->version(), version);
}

TEST(TrainSessionResultsTest, SessionsOutliveWhatTheyWereMadeFrom) {
  const Dot dot = MakeDot();
  std::unique_ptr<TrainSession> session;
  {
    REPRISE_ASSERT_OK_AND_ASSIGN(Trained trained, StartDot(MakeWorld(2), dot, {}));
    session = std::move(trained.session);
  }
  ASSERT_THAT(session->BeginStep({}), IsOk());
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_THAT(session->CopyInput<float>(rank, dot.x, std::vector<float>(5, 2)), IsOk());
  }
  ASSERT_THAT(session->RunMicrobatch(), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto gradient, session->ReadGradient("w"));
  EXPECT_EQ(gradient, std::vector<float>(5, 2.0f));
  EXPECT_THAT(session->EndStep(), IsOk());
  EXPECT_THAT(session->Synchronize(), IsOk());
}

}  // namespace
}  // namespace reprise
