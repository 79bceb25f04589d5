// What a failure does to its own session, and what it does not do to others.
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/graph/dot_session_test.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using testing::Dot;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::MakeDot;
using testing::StatusIs;

using testing::BreakableWorld;

class SessionFailuresTest : public testing::DotSessionTest {
 protected:
  // The dot product, whose replays throw while `broken_` is set.
  Dot Fragile() {
    Dot dot = MakeDot();
    ComputeFunction& forward = dot.compute[dot.call].forward;
    forward = [this, forward](ComputeContext& c) {
      c.stream().host_queue().Enqueue([this] {
        if (broken_) throw std::runtime_error("broken");
      });
      return forward(c);
    };
    return dot;
  }
  absl::Status ReplayForward(ForwardSession& forward) {
    for (int rank = 0; rank < 2; ++rank) {
      REPRISE_RETURN_IF_ERROR(forward.CopyInput(rank, 0, dot_.x, std::vector<float>(5, 1.0f)));
    }
    return forward.Replay(0);
  }

  bool broken_ = false;
};

TEST_F(SessionFailuresTest, AFailedReplayIsFinal) {
  Start();
  ExpectStepWorks();
  ASSERT_THAT(session_->BeginStep({.learning_rate = 0}), IsOk());
  ASSERT_THAT(Copy(0), IsOk());
  ASSERT_THAT(Copy(1), IsOk());
  const absl::Status broken = absl::UnavailableError("the device is gone");
  world_->BreakReplays(broken);
  EXPECT_EQ(session_->RunMicrobatch(), broken);
  world_->BreakReplays(absl::OkStatus());
  EXPECT_EQ(session_->BeginStep({.learning_rate = 0}), broken);
  EXPECT_THAT(parameters_->Write("w", std::vector<float>(5, 2)), IsOk()) << "its step is closed";
  EXPECT_EQ(Copy(0), broken);
  EXPECT_EQ(session_->RunMicrobatch(), broken);
  EXPECT_EQ(session_->EndStep(), broken);
  EXPECT_EQ(session_->DiscardGradients(), broken);
  EXPECT_EQ(session_->MarkParametersChanged(), broken);
  EXPECT_EQ(session_->Synchronize(), broken);
  EXPECT_EQ(session_->ReadOutput<float>(0, dot_.loss).status(), broken);
  EXPECT_EQ(session_->ReadGradient("w").status(), broken);
}

// The device publishes a step's metrics, and goes on after another rank gave up.
TEST_F(SessionFailuresTest, MetricsThatMayMeanNothingAreNotReturned) {
  Start();
  ExpectStepWorks();
  ASSERT_FALSE(session_->PollMetrics().empty());
  ExpectStepWorks();
  const absl::Status gave_up = absl::UnavailableError("rank 1 of 2 gave up");
  world_->BreakResults(gave_up);
  EXPECT_TRUE(session_->PollMetrics().empty());
  world_->BreakResults(absl::OkStatus());
  EXPECT_EQ(session_->BeginStep({.learning_rate = 0}), gave_up) << "which is final";
  EXPECT_EQ(session_->Synchronize(), gave_up);
}

TEST_F(SessionFailuresTest, AFailedWarmUpLeavesNoSession) {
  world_->BreakReplays(absl::UnavailableError("the device is gone"));
  EXPECT_THAT(Train(MakeDot(), {}), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the device is gone")));
}

TEST_F(SessionFailuresTest, AFailedForwardReplayIsFinal) {
  Start();
  StartForward();
  for (int rank = 0; rank < 2; ++rank) ASSERT_THAT(CopyForward(rank), IsOk());
  const absl::Status broken = absl::UnavailableError("the device is gone");
  world_->BreakReplays(broken);
  EXPECT_EQ(forward_->Replay(0), broken);
  world_->BreakReplays(absl::OkStatus());
  EXPECT_EQ(forward_->Replay(1), broken);
  EXPECT_EQ(CopyForward(0, 1), broken);
  EXPECT_EQ(forward_->ClearState(0), broken);
  EXPECT_EQ(forward_->Synchronize(), broken);
  EXPECT_EQ(forward_->ReadOutput<float>(0, 0, dot_.loss).status(), broken);
  EXPECT_EQ(forward_->Address(0, 0, dot_.loss).status(), broken);
}

// As where a device goes on after its world gave up: what the norm is made of is not this step's.
TEST_F(SessionFailuresTest, AStepThatDiffersOnTheDeviceIsSkippedAndNamed) {
  for (const int differing : {0, 1}) {
    world_ = std::make_shared<BreakableWorld>(2);
    Start();
    ExpectStepWorks();
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> before, parameters_->Read("w"));
    world_->MakeStepsDiffer(differing);
    ASSERT_THAT(session_->BeginStep({.learning_rate = 0.5f}), IsOk());
    RunMicrobatch();
    ASSERT_THAT(session_->EndStep(), IsOk());
    const auto named = StatusIs(absl::StatusCode::kFailedPrecondition,
                                HasSubstr("step 1 made no update: its ranks gave different steps"));
    EXPECT_THAT(session_->Synchronize(), named);
    EXPECT_THAT(session_->BeginStep({.learning_rate = 0}), named) << "for good";
    const std::vector<StepMetrics> metrics = session_->PollMetrics();
    ASSERT_EQ(metrics.size(), 2u);
    EXPECT_EQ(metrics[0].skip_reason, SkipReason::kNone);
    EXPECT_TRUE(metrics[1].skipped);
    EXPECT_EQ(metrics[1].skip_reason, SkipReason::kRanksDiffer);
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> after, parameters_->Read("w"));
    EXPECT_EQ(after, before);
  }
}

TEST_F(SessionFailuresTest, AStepThatDifferedFailsWhereItIsSeenFirst) {
  for (const bool polls : {false, true}) {
    world_ = std::make_shared<BreakableWorld>(2);
    Start();
    world_->MakeStepsDiffer(1);
    ExpectStepWorks();
    world_->MakeStepsDiffer(-1);
    if (polls) {
      EXPECT_EQ(session_->PollMetrics().size(), 1u);
    } else {
      ASSERT_THAT(session_->BeginStep({.learning_rate = 0}), IsOk());
      RunMicrobatch();
    }
    EXPECT_THAT(session_->EndStep(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("step 0 made no update")));
  }
}

// ---- other sessions ----

TEST_F(SessionFailuresTest, AFailedCreateIsNotRepeatedByTheNext) {
  broken_ = true;
  EXPECT_THAT(Train(Fragile(), {}), StatusIs(absl::StatusCode::kInternal, HasSubstr("broken")));
  EXPECT_THAT(world_->Synchronize(), IsOk());
  Start();
  ExpectStepWorks();
  EXPECT_THAT(session_->Synchronize(), IsOk());
}

TEST_F(SessionFailuresTest, AFailedReplayIsNotAnErrorOfOtherSessions) {
  Start();
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto fragile, Forward(Fragile(), {"fragile"}));
  StartForward();
  broken_ = true;
  EXPECT_THAT(ReplayForward(*fragile), StatusIs(absl::StatusCode::kInternal, HasSubstr("broken")));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(ReplayForward(*forward_), IsOk());
    EXPECT_THAT(forward_->Synchronize(), IsOk());
    ExpectStepWorks();
    EXPECT_THAT(session_->Synchronize(), IsOk());
  }
  EXPECT_THAT(fragile->Synchronize(), StatusIs(absl::StatusCode::kInternal, HasSubstr("broken")));
}

TEST_F(SessionFailuresTest, AFailureInAStepFreesTheSharedArena) {
  Start();
  StartForward(session_.get());
  ASSERT_THAT(ReplayForward(*forward_), IsOk());
  ASSERT_THAT(session_->BeginStep({.learning_rate = 0}), IsOk());
  for (int rank = 0; rank < 2; ++rank) ASSERT_THAT(Copy(rank), IsOk());
  const absl::Status broken = absl::UnavailableError("the device is gone");
  world_->BreakReplays(broken);
  EXPECT_EQ(session_->RunMicrobatch(), broken);
  world_->BreakReplays(absl::OkStatus());
  ASSERT_THAT(ReplayForward(*forward_), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> loss, forward_->ReadOutput<float>(0, 0, dot_.loss));
  EXPECT_EQ(loss, std::vector<float>{5.0f});
  EXPECT_EQ(session_->EndStep(), broken);
  EXPECT_THAT(Forward(dot_, {"another"}, {}, session_.get()), IsOk());
}

TEST_F(SessionFailuresTest, AFailedUpdateCountsAsAChangeOfTheParameters) {
  Start();
  ASSERT_THAT(session_->BeginStep({.learning_rate = 0}), IsOk());
  RunMicrobatch();
  const int64_t version = parameters_->version();
  world_->BreakReplays(absl::UnavailableError("the device is gone"));
  EXPECT_FALSE(session_->EndStep().ok());
  EXPECT_GT(parameters_->version(), version) << "some ranks may have updated theirs";
}

}  // namespace
}  // namespace reprise
