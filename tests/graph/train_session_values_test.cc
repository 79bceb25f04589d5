// Small models whose every number is known.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "reprise/graph/host_world.h"
#include "reprise/graph/train_session.h"
#include "tests/graph/session_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using testing::Dot;
using testing::DotTraining;
using testing::IsOk;
using testing::MakeDot;
using testing::ReadAll;
using testing::RunMicrobatches;
using testing::StartTraining;

std::shared_ptr<World> MakeWorld(int size) { return *CreateHostWorld({.size = size}); }

TEST(TrainSessionExactTest, FoundingAverages) {
  for (const int size : {1, 2, 3, 4, 8}) {
    const Dot dot = MakeDot({.size = size});
    REPRISE_ASSERT_OK_AND_ASSIGN(const DotTraining trained, StartTraining(MakeWorld(size), dot, {}));
    ASSERT_THAT(
        RunMicrobatches(trained, {.learning_rate = 0, .microbatches = 2, .gradient_divisor = static_cast<double>(size)},
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
      REPRISE_ASSERT_OK_AND_ASSIGN(const DotTraining trained,
                                   StartTraining(MakeWorld(3), dot, {.optimizer = Sgd{}, .loss_scale = loss_scale}));
      // The sum over 2 microbatches and 3 ranks is (0 + 1 + 2) * 2 + 3 * 8 = 30.
      ASSERT_THAT(RunMicrobatches(trained, {.learning_rate = 0.25f, .microbatches = 2, .gradient_divisor = divisor},
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
  REPRISE_ASSERT_OK_AND_ASSIGN(const DotTraining trained, StartTraining(MakeWorld(2), dot, {.optimizer = Sgd{}}));
  float want = 1;
  for (const float rate : {0.5f, 0.0f, 0.125f}) {
    for (const int microbatches : {1, 3, 2}) {
      ASSERT_THAT(RunMicrobatches(trained, {.learning_rate = rate, .microbatches = microbatches},
                                  [](int m, int) { return static_cast<float>(2 * m); }),
                  IsOk());
      ASSERT_THAT(trained.session->EndStep(), IsOk());
      want -= rate * static_cast<float>(microbatches - 1);
      REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> w, trained.parameters->Read("w"));
      EXPECT_EQ(w, std::vector<float>(5, want));
      EXPECT_FLOAT_EQ(trained.session->PollMetrics().at(0).gradient_norm,
                      static_cast<float>(microbatches - 1) * std::sqrt(5.0f));
    }
  }
}

TEST(TrainSessionExactTest, ClipsTheNormOfTheDividedGradient) {
  const Dot dot = MakeDot({.size = 4});
  REPRISE_ASSERT_OK_AND_ASSIGN(const DotTraining trained,
                               StartTraining(MakeWorld(2), dot, {.optimizer = Sgd{}, .clip_norm = 2.0f}));
  // The gradient is 8 in each of 4 elements: its norm is 16, so that it is clipped to 1 in each.
  ASSERT_THAT(RunMicrobatches(trained, {.learning_rate = 0.5f}, [](int, int) { return 8.0f; }), IsOk());
  ASSERT_THAT(trained.session->EndStep(), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> w, trained.parameters->Read("w"));
  EXPECT_EQ(w, std::vector<float>(4, 0.5f));
  EXPECT_EQ(trained.session->PollMetrics().at(0).gradient_norm, 16.0f);
}

TEST(TrainSessionExactTest, NonFiniteGradientsSkipTheUpdateAndDoNotLeak) {
  const Dot dot = MakeDot();
  REPRISE_ASSERT_OK_AND_ASSIGN(const DotTraining trained, StartTraining(MakeWorld(2), dot, {.optimizer = Sgd{}}));
  for (const float x : {std::nanf(""), 1.0f}) {
    ASSERT_THAT(RunMicrobatches(trained, {.learning_rate = 0.5f}, [&](int, int) { return x; }), IsOk());
    ASSERT_THAT(trained.session->EndStep(), IsOk());
  }
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> w, trained.parameters->Read("w"));
  EXPECT_EQ(w, std::vector<float>(5, 0.5f)) << "only the second step counts";
  const std::vector<StepMetrics> metrics = trained.session->PollMetrics();
  ASSERT_EQ(metrics.size(), 2u);
  EXPECT_TRUE(metrics[0].skipped);
  EXPECT_EQ(metrics[0].skip_reason, SkipReason::kGradientNotFinite);
  EXPECT_FALSE(metrics[1].skipped);
}

TEST(TrainSessionExactTest, TheNormOfDiscardedGradientsDoesNotLeak) {
  const Dot dot = MakeDot({.with_others = true});
  for (const Tail tail : {Tail::kInGraph, Tail::kCarried}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(
        const DotTraining trained,
        StartTraining(MakeWorld(2), dot, {.run = {.plan = {.tail = tail}}, .optimizer = Sgd{}}));
    ASSERT_THAT(
        RunMicrobatches(trained, {.learning_rate = 0, .microbatches = 2}, [](int, int) { return std::nanf(""); }),
        IsOk());
    ASSERT_THAT(trained.session->DiscardGradients(), IsOk());
    for (const int microbatches : {3, 1}) {
      ASSERT_THAT(
          RunMicrobatches(trained, {.learning_rate = 0, .microbatches = microbatches}, [](int, int) { return 2.0f; }),
          IsOk());
      ASSERT_THAT(trained.session->EndStep(), IsOk());
      const std::vector<StepMetrics> metrics = trained.session->PollMetrics();
      ASSERT_EQ(metrics.size(), 1u);
      EXPECT_FALSE(metrics[0].skipped);
      EXPECT_FLOAT_EQ(metrics[0].gradient_norm, 2 * std::sqrt(5.0f));
    }
  }
}

TEST(TrainSessionExactTest, FrozenAndUnusedParametersStay) {
  const Dot dot = MakeDot({.with_others = true});
  REPRISE_ASSERT_OK_AND_ASSIGN(const DotTraining trained,
                               StartTraining(MakeWorld(3), dot, {.optimizer = Sgd{.momentum = 0.5f}}));
  ASSERT_THAT(RunMicrobatches(trained, {.learning_rate = 0.5f}, [](int, int) { return 2.0f; }), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> gradient, trained.session->ReadGradient("unused"));
  EXPECT_EQ(gradient, std::vector<float>(7, 0.0f));
  ASSERT_THAT(trained.session->EndStep(), IsOk());
  EXPECT_FLOAT_EQ(trained.session->PollMetrics().at(0).gradient_norm, 2 * std::sqrt(5.0f)) << "that of w alone";
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto all, ReadAll(*trained.parameters));
  EXPECT_EQ(all, (std::vector<std::vector<float>>{std::vector<float>(5, 0.0f), std::vector<float>(3, 1.0f),
                                                  std::vector<float>(7, 1.0f)}));
}

TEST(TrainSessionExactTest, WarmUpChangesNothing) {
  const Dot dot = MakeDot({.with_others = true});
  REPRISE_ASSERT_OK_AND_ASSIGN(const DotTraining trained, StartTraining(MakeWorld(2), dot, {}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto all, ReadAll(*trained.parameters));
  for (const std::vector<float>& parameter : all) EXPECT_THAT(parameter, ::testing::Each(1.0f));
  EXPECT_TRUE(trained.session->PollMetrics().empty());
  const SessionReport& capture = trained.session->report();
  const MemoryPlan& memory = trained.session->plan().memory;
  EXPECT_EQ(capture.persistent_bytes, memory.persistent_bytes());
  EXPECT_EQ(capture.transient_bytes, memory.transient_bytes());
  EXPECT_GE(capture.seconds, 0);
}

TEST(TrainSessionExactTest, ComputeFunctionsRunOnlyBeforeTheFirstStepOfAGraph) {
  const Dot dot = MakeDot();
  int calls = 0;
  ComputeTable compute = dot.compute;
  compute[dot.call].forward = [&calls, forward = dot.compute.at(dot.call).forward](ComputeContext& c) {
    calls += c.rank() == 0 ? 1 : 0;
    return forward(c);
  };
  Dot counted = dot;
  counted.compute = compute;
  REPRISE_ASSERT_OK_AND_ASSIGN(const DotTraining trained, StartTraining(MakeWorld(2), counted, {}));
  const int recorded = calls;
  EXPECT_GE(recorded, 3) << "twice eagerly and once per graph";
  ASSERT_THAT(RunMicrobatches(trained, {.learning_rate = 0, .microbatches = 4}, [](int, int) { return 1.0f; }), IsOk());
  ASSERT_THAT(trained.session->EndStep(), IsOk());
  EXPECT_EQ(calls, recorded);
}

TEST(TrainSessionExactTest, AdamWMatchesItsFormula) {
  const Dot dot = MakeDot();
  const AdamW adamw = {.beta1 = 0.5f, .beta2 = 0.75f, .epsilon = 1e-3f, .weight_decay = 0.25f};
  REPRISE_ASSERT_OK_AND_ASSIGN(const DotTraining trained, StartTraining(MakeWorld(4), dot, {.optimizer = adamw}));
  double w = 1, m = 0, v = 0;
  for (int t = 1; t <= 4; ++t) {
    const double gradient = t, rate = 0.125;
    ASSERT_THAT(RunMicrobatches(trained, {.learning_rate = 0.125f}, [&](int, int) { return static_cast<float>(t); }),
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
  REPRISE_ASSERT_OK_AND_ASSIGN(const DotTraining trained, StartTraining(MakeWorld(1), dot, {.optimizer = Sgd{}}));
  int64_t next = 0;
  for (const int steps : {1, 3, static_cast<int>(kMetricsRingSize), static_cast<int>(2 * kMetricsRingSize + 5)}) {
    for (int i = 0; i < steps; ++i) {
      ASSERT_THAT(
          RunMicrobatches(trained, {.learning_rate = 0}, [&](int, int) { return static_cast<float>(next + i); }),
          IsOk());
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
  REPRISE_ASSERT_OK_AND_ASSIGN(const DotTraining trained, StartTraining(MakeWorld(2), dot, {.loss_scale = 4}));
  ASSERT_THAT(trained.parameters->Write("w", {1, 2, 3, 4, 5}), IsOk());
  ASSERT_THAT(RunMicrobatches(trained, {.learning_rate = 0, .microbatches = 2},
                              [](int m, int rank) { return 10.0f * m + rank; }),
              IsOk());
  for (int rank = 0; rank < 2; ++rank) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto loss, trained.session->ReadOutput<float>(rank, dot.loss));
    EXPECT_EQ(loss, std::vector<float>{15.0f * (10 + rank)});
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto gradient, trained.session->ReadInputGradient<float>(rank, dot.x));
    EXPECT_EQ(gradient, (std::vector<float>{4, 8, 12, 16, 20})) << "not divided by the loss scale";
  }
}

TEST(TrainSessionResultsTest, ExternalTensorsAreUsedInPlace) {
  const Dot dot = MakeDot({.size = 4, .external = true});
  alignas(16) float x[2][4];
  std::fill_n(&x[0][0], 8, 0.0f);
  RunOptions run;
  for (int rank = 0; rank < 2; ++rank) run.external.push_back({rank, dot.x, x[rank], sizeof(x[rank])});
  REPRISE_ASSERT_OK_AND_ASSIGN(const DotTraining trained, StartTraining(MakeWorld(2), dot, {.run = run}));
  std::iota(&x[0][0], &x[0][0] + 8, 1.0f);
  ASSERT_THAT(trained.session->BeginStep({.learning_rate = 0, .gradient_divisor = 1}), IsOk());
  ASSERT_THAT(trained.session->RunMicrobatch(), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto gradient, trained.session->ReadGradient("w"));
  EXPECT_EQ(gradient, (std::vector<float>{6, 8, 10, 12}));
}

TEST(TrainSessionResultsTest, ParametersMayChangeBetweenSteps) {
  const Dot dot = MakeDot();
  REPRISE_ASSERT_OK_AND_ASSIGN(const DotTraining trained, StartTraining(MakeWorld(2), dot, {}));
  for (const float value : {3.0f, 7.0f}) {
    ASSERT_THAT(trained.parameters->Write("w", std::vector<float>(5, value)), IsOk());
    ASSERT_THAT(RunMicrobatches(trained, {.learning_rate = 0}, [](int, int) { return 1.0f; }), IsOk());
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
    REPRISE_ASSERT_OK_AND_ASSIGN(DotTraining trained, StartTraining(MakeWorld(2), dot, {}));
    session = std::move(trained.session);
  }
  ASSERT_THAT(session->BeginStep({.learning_rate = 0}), IsOk());
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_THAT(session->CopyInput(rank, dot.x, std::vector<float>(5, 2)), IsOk());
  }
  ASSERT_THAT(session->RunMicrobatch(), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto gradient, session->ReadGradient("w"));
  EXPECT_EQ(gradient, std::vector<float>(5, 2.0f));
  EXPECT_THAT(session->EndStep(), IsOk());
  EXPECT_THAT(session->Synchronize(), IsOk());
}

}  // namespace
}  // namespace reprise
