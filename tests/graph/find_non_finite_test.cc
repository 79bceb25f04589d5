// A step whose gradient is not finite says where that began.
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/graph/host_world.h"
#include "reprise/graph/train_session.h"
#include "tests/graph/residual_model.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::kRanks;
using testing::kSize;
using testing::Residual;
using testing::StatusIs;

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Case {
  ReplayOrder order = ReplayOrder::kIssue;
  PlanOptions plan = {};
};

class FindNonFiniteTest : public ::testing::TestWithParam<Case> {
 protected:
  void Start() {
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world,
                                 CreateHostWorld({.size = kRanks, .order = GetParam().order}));
    REPRISE_ASSERT_OK_AND_ASSIGN(parameters_, ShardedParameters::Create(world, model_.model));
    ASSERT_THAT(parameters_->Initialize(Constant(3)), IsOk());
    REPRISE_ASSERT_OK_AND_ASSIGN(
        session_, TrainSession::Create(parameters_, model_.model, model_.compute, {.run = {.plan = GetParam().plan}}));
  }
  // x of each rank and microbatch.
  void RunStep(const std::vector<std::vector<float>>& x_of_microbatch_and_rank) {
    const int microbatches = static_cast<int>(x_of_microbatch_and_rank.size());
    ASSERT_THAT(session_->BeginStep({.learning_rate = 0.1f, .microbatches = microbatches}), IsOk());
    for (const std::vector<float>& x_of_rank : x_of_microbatch_and_rank) RunMicrobatch(x_of_rank);
    ASSERT_THAT(session_->EndStep(), IsOk());
    ASSERT_THAT(session_->Synchronize(), IsOk());
    metrics_ = session_->PollMetrics();
  }
  void RunMicrobatch(const std::vector<float>& x_of_rank) {
    CopyX(x_of_rank);
    ASSERT_THAT(session_->RunMicrobatch(), IsOk());
  }
  void CopyX(const std::vector<float>& x_of_rank) {
    for (int rank = 0; rank < kRanks; ++rank) {
      std::vector<float> x(kSize, 1);
      x[4] = x_of_rank[rank];
      ASSERT_THAT(session_->CopyInput(rank, model_.x, x), IsOk());
    }
  }
  int per_graph() const { return GetParam().plan.microbatches_per_graph.value_or(1); }
  // Enqueues in backward of "make", behind its own work, a change of the last element of its gradient.
  void BreakGradient(float factor, int rank) {
    ComputeFunction& backward = model_.compute[model_.make_call].backward;
    backward = [this, factor, rank, inner = backward](ComputeContext& c) {
      REPRISE_RETURN_IF_ERROR(inner(c));
      const auto dw = c.parameter_gradient<float>(model_.w);
      return model_.Enqueue(c, [dw, factor, here = c.rank() == rank] { dw.data[5] *= here ? factor : 1; });
    };
  }

  Residual<float> model_;
  std::shared_ptr<ShardedParameters> parameters_;
  std::unique_ptr<TrainSession> session_;
  std::vector<StepMetrics> metrics_;
};

TEST_P(FindNonFiniteTest, ACallThatMakesIt) {
  BreakGradient(kInf, /*rank=*/1);
  // Inf times zero is NaN in warm-up; the check asks for equal bits, not for finite values.
  Start();
  RunStep({{1, 2}, {3, 4}});
  ASSERT_EQ(metrics_.size(), 1u);
  EXPECT_TRUE(metrics_[0].skipped);
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::string found, session_->FindNonFinite());
  EXPECT_THAT(found, HasSubstr("step 0, microbatch "));
  EXPECT_THAT(found, HasSubstr("on rank 1 backward of call \"make\" made element 5 of 6 of gradient of parameter \"w\" "
                               "of unit \"u\" inf from finite values"));
}

TEST_P(FindNonFiniteTest, AnInputThatIsNot) {
  Start();
  RunStep({{1, 1}, {1, kInf}});
  EXPECT_TRUE(metrics_[0].skipped);
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::string found, session_->FindNonFinite());
  EXPECT_THAT(found,
              HasSubstr("on rank 1 element 4 of 6 of input of tensor \"x\", which forward of call \"make\" reads, "
                        "is inf before"));
}

TEST_P(FindNonFiniteTest, AParameterThatIsNot) {
  Start();
  ASSERT_THAT(parameters_->Write("w", std::vector<float>{1, 1, kInf, 1, 1, 1}), IsOk());
  RunStep({{1, 1}, {1, 1}});
  EXPECT_TRUE(metrics_[0].skipped);
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::string found, session_->FindNonFinite());
  EXPECT_THAT(found,
              HasSubstr("element 2 of 6 of parameter \"w\" of unit \"u\", which forward of call \"make\" reads, is "
                        "inf"));
}

TEST_P(FindNonFiniteTest, ASumOverRanksThatOverflows) {
  model_.compute[model_.make_call].backward = [this](ComputeContext& c) {
    const auto dw = c.parameter_gradient<float>(model_.w);
    return model_.Enqueue(c, [dw] {
      // Finite on a rank, also of two microbatches.
      for (int64_t i = 0; i < kSize; ++i) Residual<float>::Store(dw, i, dw.mode == WriteMode::kAdd ? 1e38f : 2e38f);
    });
  };
  Start();
  RunStep({{1, 1}, {1, 1}});
  EXPECT_TRUE(metrics_[0].skipped);
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::string found, session_->FindNonFinite());
  EXPECT_THAT(found, HasSubstr("the reduction over ranks made element "));
  EXPECT_THAT(found, HasSubstr(" of 6 of gradient of parameter \"w\" of unit \"u\" inf from finite values"));
}

TEST_P(FindNonFiniteTest, AnEarlierMicrobatch) {
  Start();
  RunStep(std::vector<std::vector<float>>(per_graph(), {kInf, 1}));
  std::vector<std::vector<float>> x(2 * per_graph(), {1, 1});
  x[0][0] = kInf;
  RunStep(x);
  EXPECT_TRUE(metrics_[0].skipped);
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::string found, session_->FindNonFinite());
  EXPECT_THAT(found, HasSubstr("step 1, microbatch "));
  EXPECT_THAT(found, HasSubstr("every value is finite with the parameters as they are now; if the step was skipped, an "
                               "earlier microbatch"));
  // What it says to do.
  EXPECT_THAT(found, HasSubstr("; to look at an earlier one, begin a step again, run its microbatches up to that one, "
                               "and call DiscardGradients, then FindNonFinite"));
  ASSERT_THAT(session_->BeginStep({.learning_rate = 0.1f, .microbatches = 2 * per_graph()}), IsOk());
  for (int m = 0; m < per_graph(); ++m) RunMicrobatch(x[m]);
  ASSERT_THAT(session_->DiscardGradients(), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::string earlier, session_->FindNonFinite());
  EXPECT_THAT(earlier, HasSubstr("step 2, microbatch 0"));
  EXPECT_THAT(earlier, HasSubstr("on rank 0 element 4 of 6 of input of tensor \"x\""));
}

TEST_P(FindNonFiniteTest, AStepOfOneGraphHasNoEarlierMicrobatch) {
  Start();
  RunStep(std::vector<std::vector<float>>(per_graph(), {1, 1}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::string found, session_->FindNonFinite());
  EXPECT_THAT(found, HasSubstr("step 0, microbatch 0"));
  EXPECT_THAT(found, ::testing::Not(HasSubstr("earlier")));
  EXPECT_THAT(found, HasSubstr("; lower the loss or loss_scale"));
}

// The next step has begun, with inputs, and was discarded before a graph of it ran.
TEST_P(FindNonFiniteTest, ADiscardedStepThatRanNothingIsNotLookedAt) {
  for (int staged = 0; staged < per_graph(); ++staged) {
    Start();
    RunStep(std::vector<std::vector<float>>(per_graph(), {1, 1}));
    std::vector<std::vector<float>> x(2 * per_graph(), {1, 1});
    x.back()[1] = kInf;
    RunStep(x);
    ASSERT_THAT(session_->BeginStep({.learning_rate = 0.1f, .microbatches = 3 * per_graph()}), IsOk());
    for (int m = 0; m < staged; ++m) RunMicrobatch({1, 1});
    CopyX({1, 1});
    ASSERT_THAT(session_->DiscardGradients(), IsOk());
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::string found, session_->FindNonFinite());
    EXPECT_THAT(found, HasSubstr(absl::StrCat("step 1, microbatch ", per_graph())));
    EXPECT_THAT(found, HasSubstr("on rank 1 element 4 of 6 of input of tensor \"x\""));
  }
}

// Training goes on as if nothing had been asked.
TEST_P(FindNonFiniteTest, ChangesNothing) {
  std::vector<std::vector<float>> weights;
  std::vector<StepMetrics> all[2];
  for (const bool asks : {false, true}) {
    Start();
    if (asks) {
      EXPECT_THAT(session_->FindNonFinite(),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no microbatch has run")));
    }
    for (const float bad : {1.0f, kInf, 2.0f, 3.0f}) {
      RunStep({{1, 2}, {bad, 1}});
      all[asks].insert(all[asks].end(), metrics_.begin(), metrics_.end());
      if (asks) {
        EXPECT_THAT(session_->FindNonFinite(), IsOk());
      }
    }
    if (asks) {
      ASSERT_THAT(session_->BeginStep({.learning_rate = 0, .microbatches = 2}), IsOk());
      EXPECT_THAT(session_->FindNonFinite(),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("call EndStep or DiscardGradients first")));
    }
    REPRISE_ASSERT_OK_AND_ASSIGN(weights.emplace_back(), parameters_->Read("w"));
  }
  EXPECT_EQ(weights[0], weights[1]);
  ASSERT_EQ(all[0].size(), 4u);
  ASSERT_EQ(all[1].size(), 4u);
  for (int step = 0; step < 4; ++step) {
    EXPECT_EQ(all[0][step].skipped, step == 1);
    EXPECT_EQ(all[1][step].skipped, step == 1);
    if (step == 1) continue;
    EXPECT_EQ(all[0][step].loss, all[1][step].loss);
    EXPECT_EQ(all[0][step].gradient_norm, all[1][step].gradient_norm);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Plans, FindNonFiniteTest,
    ::testing::Values(Case{}, Case{.order = ReplayOrder::kAdversarial}, Case{.order = ReplayOrder::kThreads},
                      Case{.plan = {.microbatches_per_graph = 2}}, Case{.plan = {.tail = Tail::kCarried}},
                      Case{.plan = {.reduce = Reduce::kOncePerStep}}, Case{.plan = {.reduce_dtype = DType::kFloat32}}));

}  // namespace
}  // namespace reprise
