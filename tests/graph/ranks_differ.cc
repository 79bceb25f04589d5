#include "tests/graph/ranks_differ.h"

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "graph/machine.h"
#include "reprise/graph/forward_session.h"
#include "reprise/graph/train_session.h"
#include "tests/graph/session_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// Far from the deadline of a world.
constexpr absl::Duration kSoon = absl::Seconds(12);

class RanksDifferTest : public ::testing::Test {
 protected:
  // Each rank in turn is the odd one, in a new world with a session that has made a step.
  void ForEachOddRank(const std::function<void()>& body) {
    for (odd_ = 0, size_ = 1; odd_ < size_; ++odd_) {
      forward_ = nullptr;
      training_ = {};
      world_ = nullptr;
      REPRISE_ASSERT_OK_AND_ASSIGN(world_, NewWorldOfProcesses());
      size_ = world_->size();
      SCOPED_TRACE(absl::StrCat("rank ", rank(), " of ", size_, ", the odd one is ", odd_));
      REPRISE_ASSERT_OK_AND_ASSIGN(training_, StartTraining(world_, MakeDot({.with_others = true}), Options()));
      ASSERT_THAT(Step({.learning_rate = 0.5f}), IsOk());
      ASSERT_THAT(training_.session->Synchronize(), IsOk());
      REPRISE_ASSERT_OK_AND_ASSIGN(before_, Masters());
      start_ = absl::Now();
      body();
      if (HasFatalFailure()) return;
    }
  }

  static TrainOptions Options() { return {.optimizer = Sgd{}}; }
  int rank() const { return world_->local_ranks()[0]; }
  bool is_odd() const { return rank() == odd_; }
  std::string OnOdd() const { return absl::StrCat(" on rank ", odd_); }

  absl::Status Microbatches(const StepValues& values) {
    return RunMicrobatches(training_, values, [](int, int) { return 1.0f; });
  }
  absl::Status Step(const StepValues& values) {
    REPRISE_RETURN_IF_ERROR(Microbatches(values));
    return training_.session->EndStep();
  }
  // This rank's bytes of the masters; empty if its device is stuck.
  absl::StatusOr<std::string> Masters() {
    const std::shared_ptr<internal::MemoryBlock> block = training_.parameters->memory(Storage::kMasters);
    std::string bytes(static_cast<size_t>(block->num_bytes()), '\0');
    REPRISE_RETURN_IF_ERROR(
        internal::MachineOf(*world_).CopyToHost(0, bytes.data(), block->address(0), block->num_bytes()));
    return bytes;
  }

  template <class Matcher>
  void ExpectRefused(const absl::Status& status, const Matcher& words) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, words));
    EXPECT_LT(absl::Now() - start_, kSoon);
    const absl::StatusOr<std::string> after = Masters();
    if (!after.ok()) return;
    EXPECT_EQ(*after, before_) << "a parameter has changed";
  }
  // Nothing is left behind: collective calls and a new session work.
  void ExpectWorldWorks() {
    EXPECT_THAT(world_->Sum({1.0}), IsOk());
    EXPECT_THAT(training_.parameters->Read("w"), IsOk());
    const Dot& dot = training_.dot;
    absl::StatusOr<std::unique_ptr<TrainSession>> fresh =
        TrainSession::Create(training_.parameters, dot.model, dot.compute, Options());
    ASSERT_THAT(fresh, IsOk());
    training_.session = *std::move(fresh);
    EXPECT_THAT(Step({.learning_rate = 0.5f}), IsOk());
    EXPECT_THAT(training_.session->Synchronize(), IsOk());
    const std::vector<StepMetrics> metrics = training_.session->PollMetrics();
    ASSERT_EQ(metrics.size(), 1u);
    EXPECT_FALSE(metrics[0].skipped);
  }
  // Until one fails: all ranks wait for each other, whatever they launched.
  absl::Status SumAndWait() {
    REPRISE_RETURN_IF_ERROR(world_->Sum({1.0}, "losses").status());
    return world_->Synchronize();
  }

  void StartForward() {
    const Dot& dot = training_.dot;
    REPRISE_ASSERT_OK_AND_ASSIGN(
        forward_, ForwardSession::Create(training_.parameters,
                                         {{"one", dot.model, dot.compute}, {"two", dot.model, dot.compute}}, {}));
    for (const int variant : {0, 1}) {
      ASSERT_THAT(forward_->CopyInput(rank(), variant, dot.x, std::vector<float>(5, 1.0f)), IsOk());
    }
  }

  int odd_ = 0, size_ = 1;
  std::shared_ptr<World> world_;
  DotTraining training_;
  std::unique_ptr<ForwardSession> forward_;
  std::string before_;
  absl::Time start_;
};

// ---- steps ----

TEST_F(RanksDifferTest, OtherLearningRate) {
  ForEachOddRank([&] {
    const absl::Status status = Step({.learning_rate = is_odd() ? 0.25f : 0.5f, .microbatches = 2});
    ExpectRefused(status, AllOf(HasSubstr("BeginStep of step 1: ranks disagree: learning_rate 0."),
                                HasSubstr(absl::StrCat("0.25", OnOdd()))));
    EXPECT_EQ(training_.session->BeginStep({.learning_rate = 0}), status) << "the session has failed";
    EXPECT_EQ(training_.session->Synchronize(), status);
    ExpectWorldWorks();
  });
}

TEST_F(RanksDifferTest, OtherLearningRateInADiscardedStep) {
  ForEachOddRank([&] {
    ASSERT_THAT(Microbatches({.learning_rate = is_odd() ? 0.25f : 0.5f}), IsOk());
    ExpectRefused(training_.session->DiscardGradients(),
                  AllOf(HasSubstr("BeginStep of step 1: ranks disagree"), HasSubstr(absl::StrCat("0.25", OnOdd()))));
    ExpectWorldWorks();
  });
}

TEST_F(RanksDifferTest, LearningRatesThatDifferInTheLastBit) {
  ForEachOddRank([&] {
    const float odd = std::nextafter(0.1f, 1.0f);
    ExpectRefused(Step({.learning_rate = is_odd() ? odd : 0.1f}),
                  AllOf(HasSubstr("learning_rate 0.1000000"), HasSubstr(OnOdd())));
    ExpectWorldWorks();
  });
}

TEST_F(RanksDifferTest, OtherDivisor) {
  ForEachOddRank([&] {
    ExpectRefused(
        Step({.learning_rate = 0.5f, .gradient_divisor = is_odd() ? 3.0 : 4.0}),
        AllOf(HasSubstr("BeginStep of step 1"), HasSubstr("gradient_divisor"), HasSubstr(absl::StrCat("3", OnOdd()))));
    ExpectWorldWorks();
  });
}

TEST_F(RanksDifferTest, OtherNumberOfMicrobatches) {
  for (const int more : {-1, 1}) {
    ForEachOddRank([&] {
      const absl::Status status = Step({.learning_rate = 0.5f, .microbatches = is_odd() ? 2 + more : 2});
      ExpectRefused(
          status, AllOf(HasSubstr("BeginStep of step 1: ranks disagree"), HasSubstr(absl::StrCat(2 + more, OnOdd()))));
      EXPECT_FALSE(training_.session->BeginStep({.learning_rate = 0}).ok()) << "the session has failed";
      EXPECT_FALSE(Step({.learning_rate = 0.5f}).ok());
      EXPECT_LT(absl::Now() - start_, kSoon);
    });
  }
}

TEST_F(RanksDifferTest, AStepThatOneRankRefuses) {
  ForEachOddRank([&] {
    const absl::Status status = Step({.learning_rate = is_odd() ? -1.0f : 0.5f});
    if (is_odd()) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("learning_rate is -1")));
    } else {
      ExpectRefused(status, AllOf(HasSubstr("BeginStep of step 1 failed on"), HasSubstr(absl::StrCat("rank ", odd_)),
                                  HasSubstr("learning_rate is -1")));
    }
    EXPECT_LT(absl::Now() - start_, kSoon);
  });
}

TEST_F(RanksDifferTest, OtherLossScale) {
  ForEachOddRank([&] {
    const Dot& dot = training_.dot;
    TrainOptions options = Options();
    if (is_odd()) options.loss_scale = 2;
    ExpectRefused(TrainSession::Create(training_.parameters, dot.model, dot.compute, options).status(),
                  AllOf(HasSubstr("planning"), HasSubstr("ranks disagree"), HasSubstr(absl::StrCat("rank ", odd_))));
    ExpectWorldWorks();
  });
}

TEST_F(RanksDifferTest, AStepOfAnotherSession) {
  ForEachOddRank([&] {
    const Dot& dot = training_.dot;
    REPRISE_ASSERT_OK_AND_ASSIGN(std::unique_ptr<TrainSession> other,
                                 TrainSession::Create(training_.parameters, dot.model, dot.compute, Options()));
    if (is_odd()) std::swap(other, training_.session);
    ExpectRefused(Step({.learning_rate = 0.5f}), AllOf(HasSubstr("ranks disagree"), HasSubstr(OnOdd())));
  });
}

// The others end the step, and are left alone in it.
TEST_F(RanksDifferTest, ADiscardedStep) {
  ForEachOddRank([&] {
    ASSERT_THAT(Microbatches({.learning_rate = 0.5f}), IsOk());
    absl::Status status = is_odd() ? training_.session->DiscardGradients() : training_.session->EndStep();
    if (status.ok()) status = SumAndWait();
    ExpectRefused(status, AllOf(HasSubstr("DiscardGradients of step 1"), HasSubstr(OnOdd())));
    EXPECT_FALSE(world_->Sum({1.0}).ok()) << "what some launched alone has no counterpart";
    EXPECT_LT(absl::Now() - start_, kSoon);
  });
}

// ---- parameters ----

TEST_F(RanksDifferTest, MarkParametersChanged) {
  ForEachOddRank([&] {
    const absl::Status status = is_odd() ? training_.session->MarkParametersChanged() : Step({.learning_rate = 0.5f});
    ExpectRefused(status, AllOf(HasSubstr(absl::StrCat("MarkParametersChanged", OnOdd())),
                                HasSubstr("BeginStep of step 1 on rank")));
  });
}

TEST_F(RanksDifferTest, AWriteOfOneRank) {
  ForEachOddRank([&] {
    const absl::Status status = is_odd() ? training_.parameters->Write("w", std::vector<float>(5, 2))
                                         : training_.parameters->Write("unused", std::vector<float>(7, 2));
    ExpectRefused(status, AllOf(HasSubstr(absl::StrCat("Write of parameter \"w\"", OnOdd())),
                                HasSubstr("Write of parameter \"unused\" on rank")));
    ExpectWorldWorks();
  });
}

TEST_F(RanksDifferTest, AWriteBesideAStep) {
  ForEachOddRank([&] {
    const absl::Status status =
        is_odd() ? training_.parameters->Write("w", std::vector<float>(5, 2)) : Step({.learning_rate = 0.5f});
    ExpectRefused(status, AllOf(HasSubstr(absl::StrCat("Write of parameter \"w\"", OnOdd())),
                                HasSubstr("BeginStep of step 1 on rank")));
  });
}

TEST_F(RanksDifferTest, AWriteOfOtherValues) {
  ForEachOddRank([&] {
    std::vector<float> values(5, 2);
    if (is_odd()) values[4] = 3;
    ExpectRefused(
        training_.parameters->Write("w", values),
        AllOf(HasSubstr("Write of parameter \"w\": ranks disagree: a hash of the values"), HasSubstr(OnOdd())));
    EXPECT_THAT(training_.parameters->Write("w", std::vector<float>(5, 4)), IsOk());
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> written, training_.parameters->Read("w"));
    EXPECT_EQ(written, std::vector<float>(5, 4));
    ExpectWorldWorks();
  });
}

TEST_F(RanksDifferTest, AWriteThatOneRankRefuses) {
  ForEachOddRank([&] {
    const absl::Status status = training_.parameters->Write("w", std::vector<float>(is_odd() ? 6 : 5, 2));
    if (is_odd()) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("6 values for 5 elements")));
    } else {
      ExpectRefused(status, AllOf(HasSubstr(absl::StrCat("failed", OnOdd())), HasSubstr("6 values for 5 elements")));
    }
    ExpectWorldWorks();
  });
}

// Two of equal layout, as weights and their average are.
TEST_F(RanksDifferTest, OtherParameters) {
  ForEachOddRank([&] {
    const Dot& dot = training_.dot;
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ShardedParameters> others,
                                 ShardedParameters::Create(world_, dot.model));
    ASSERT_THAT(others->Initialize(Constant(5)), IsOk());
    const std::shared_ptr<ShardedParameters>& used = is_odd() ? others : training_.parameters;
    const auto named =
        AllOf(HasSubstr("ranks disagree"), HasSubstr("number of the ShardedParameters"), HasSubstr(OnOdd()));
    ExpectRefused(used->Read("w").status(), AllOf(HasSubstr("Read of parameter \"w\""), HasSubstr("ranks disagree"),
                                                  HasSubstr("the ShardedParameters of number"), HasSubstr(OnOdd())));
    ExpectRefused(used->Write("w", std::vector<float>(5, 2)), named);
    ExpectRefused(used->Initialize(Constant(2)), named);
    ExpectRefused(TrainSession::Create(used, dot.model, dot.compute, Options()).status(), named);
    ExpectWorldWorks();
  });
}

TEST_F(RanksDifferTest, AGradientOfAnotherSession) {
  ForEachOddRank([&] {
    const Dot& dot = training_.dot;
    REPRISE_ASSERT_OK_AND_ASSIGN(std::unique_ptr<TrainSession> other,
                                 TrainSession::Create(training_.parameters, dot.model, dot.compute, Options()));
    ASSERT_THAT(Microbatches({.learning_rate = 0.5f}), IsOk());
    std::swap(other, training_.session);
    ASSERT_THAT(Microbatches({.learning_rate = 0.5f}), IsOk());
    if (is_odd()) std::swap(other, training_.session);
    ExpectRefused(training_.session->ReadGradient("w").status(),
                  AllOf(HasSubstr("ranks disagree"), HasSubstr("the session of number"), HasSubstr(OnOdd())));
  });
}

TEST_F(RanksDifferTest, AnotherInitializer) {
  ForEachOddRank([&] {
    ExpectRefused(training_.parameters->Initialize(Normal(is_odd() ? 1 : 2, 1.0f)),
                  AllOf(HasSubstr("Initialize: ranks disagree"), HasSubstr(OnOdd())));
    ExpectWorldWorks();
  });
}

TEST_F(RanksDifferTest, AnInitializerOfOneRank) {
  ForEachOddRank([&] {
    const absl::Status status =
        is_odd() ? training_.parameters->Initialize(Constant(2)) : training_.parameters->Read("w").status();
    ExpectRefused(status, AllOf(HasSubstr(absl::StrCat("Initialize", OnOdd())), HasSubstr("Read of parameter \"w\"")));
    ExpectWorldWorks();
  });
}

TEST_F(RanksDifferTest, AnInitializerThatFailsLate) {
  ForEachOddRank([&] {
    int calls = 0;
    const absl::Status status =
        training_.parameters->Initialize([&](const ParameterSpec&, int64_t, absl::Span<float> values) {
          if (is_odd() && ++calls > 3) throw std::runtime_error("only here");
          for (float& value : values) value = 2;
        });
    // The odd rank may own nothing of the parameters but their padding, so that its initializer is not called again.
    if (is_odd() && calls > 3) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, HasSubstr("only here")));
    } else if (!status.ok()) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   AllOf(HasSubstr(absl::StrCat("failed", OnOdd())), HasSubstr("only here"))));
    }
    REPRISE_ASSERT_OK_AND_ASSIGN(const double failed, world_->Sum({status.ok() ? 0.0 : 1.0}));
    EXPECT_TRUE(failed == 0 || failed == size_) << failed << " ranks have failed";
    if (odd_ == 0) {
      EXPECT_EQ(failed, size_);
    }
    if (failed == 0) return;
    for (const char* name : {"w", "unused"}) {
      EXPECT_THAT(training_.parameters->Read(name),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("was never set")));
    }
    EXPECT_THAT(training_.session->BeginStep({.learning_rate = 0.5f}),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("was never set")));
    EXPECT_THAT(training_.parameters->Initialize(Constant(2)), IsOk());
    EXPECT_THAT(training_.parameters->Read("w"), IsOk());
  });
}

// ---- exchanges ----

TEST_F(RanksDifferTest, ReadsOfDifferentParameters) {
  ForEachOddRank([&] {
    const std::string name = is_odd() ? "frozen" : "w";
    ExpectRefused(training_.parameters->Read(name).status(),
                  AllOf(HasSubstr(absl::StrCat("Read of parameter \"frozen\"", OnOdd())),
                        HasSubstr("Read of parameter \"w\" on rank")));
    ExpectWorldWorks();
  });
}

TEST_F(RanksDifferTest, AReadThatOneRankRefuses) {
  ForEachOddRank([&] {
    const absl::Status status = training_.parameters->Read(is_odd() ? "nothing" : "w").status();
    if (is_odd()) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("nothing")));
    } else {
      ExpectRefused(status, HasSubstr(absl::StrCat("Read of parameter \"nothing\"", OnOdd())));
    }
    ExpectWorldWorks();
  });
}

TEST_F(RanksDifferTest, SumsOfDifferentThings) {
  ForEachOddRank([&] {
    ExpectRefused(world_->Sum({1.0}, is_odd() ? "tokens" : "losses").status(),
                  AllOf(HasSubstr(absl::StrCat("Sum of tokens", OnOdd())), HasSubstr("Sum of losses on rank")));
    ExpectWorldWorks();
  });
}

TEST_F(RanksDifferTest, AVoteBesideARead) {
  ForEachOddRank([&] {
    ExpectRefused(is_odd() ? internal::MachineOf(*world_).Agree("resting", absl::OkStatus(), {})
                           : training_.parameters->Read("w").status(),
                  AllOf(HasSubstr(absl::StrCat("vote on resting", OnOdd())), HasSubstr("Read of parameter \"w\"")));
    ExpectWorldWorks();
  });
}

TEST_F(RanksDifferTest, GradientsOfDifferentParameters) {
  ForEachOddRank([&] {
    ASSERT_THAT(Microbatches({.learning_rate = 0.5f}), IsOk());
    ExpectRefused(training_.session->ReadGradient(is_odd() ? "unused" : "w").status(),
                  AllOf(HasSubstr(absl::StrCat("ReadGradient of parameter \"unused\"", OnOdd())),
                        HasSubstr("ReadGradient of parameter \"w\"")));
  });
}

// ---- evaluation ----

TEST_F(RanksDifferTest, ReplaysOfDifferentVariants) {
  ForEachOddRank([&] {
    StartForward();
    absl::Status status = forward_->Replay(is_odd() ? 1 : 0);
    if (status.ok()) status = SumAndWait();
    ExpectRefused(status, AllOf(HasSubstr("of variant \"two\""), HasSubstr("of variant \"one\""), HasSubstr(OnOdd())));
    EXPECT_FALSE(world_->Sum({1.0}).ok());
  });
}

// Of two whose variants have equal names.
TEST_F(RanksDifferTest, AReplayOfAnotherSession) {
  ForEachOddRank([&] {
    StartForward();
    const std::unique_ptr<ForwardSession> first = std::move(forward_);
    StartForward();
    absl::Status status = (is_odd() ? *first : *forward_).Replay(0);
    if (status.ok()) status = SumAndWait();
    ExpectRefused(status, AllOf(HasSubstr("of variant \"one\" of session "), HasSubstr(OnOdd())));
    EXPECT_FALSE(world_->Sum({1.0}).ok());
  });
}

TEST_F(RanksDifferTest, AStepWithoutALearningRate) {
  ForEachOddRank([&] {
    const absl::Status status = Step(is_odd() ? StepValues{} : StepValues{.learning_rate = 0.5f});
    if (is_odd()) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("learning_rate is not set")));
    } else {
      ExpectRefused(status, AllOf(HasSubstr(absl::StrCat("failed", OnOdd())), HasSubstr("learning_rate is not set")));
    }
  });
}

TEST_F(RanksDifferTest, AWriteInAStep) {
  ForEachOddRank([&] {
    ASSERT_THAT(Microbatches({.learning_rate = 0.5f}), IsOk());
    const absl::Status status = training_.parameters->Write("w", std::vector<float>(5, 2));
    ExpectRefused(status, HasSubstr("Write of parameter \"w\": step 1 of a session on these parameters is open"));
    EXPECT_THAT(training_.session->EndStep(), IsOk());
    EXPECT_THAT(training_.parameters->Write("w", std::vector<float>(5, 2)), IsOk());
    ExpectWorldWorks();
  });
}

// The odd rank waits for its device, and the others for the odd rank.
TEST_F(RanksDifferTest, OneMoreEvaluation) {
  ForEachOddRank([&] {
    StartForward();
    absl::Status status = is_odd() ? forward_->Replay(0) : absl::OkStatus();
    if (status.ok() && is_odd()) status = forward_->ReadOutput<float>(rank(), 0, training_.dot.loss).status();
    if (status.ok()) status = SumAndWait();
    ExpectRefused(status, AllOf(HasSubstr("Sum of losses after"), HasSubstr("a wait for its device"),
                                HasSubstr("of variant \"one\""), HasSubstr(OnOdd())));
    EXPECT_FALSE(world_->Sum({1.0}).ok());
    EXPECT_LT(absl::Now() - start_, kSoon);
  });
}

// The odd rank makes its evaluation when the others begin a step.
TEST_F(RanksDifferTest, AnEvaluationBesideAStep) {
  ForEachOddRank([&] {
    StartForward();
    absl::Status status = is_odd() ? forward_->Replay(0) : absl::OkStatus();
    if (status.ok()) status = Step({.learning_rate = 0.5f});
    if (status.ok()) status = SumAndWait();
    // Processes on the host compare each collective of a launch; devices do not.
    ExpectRefused(status, AllOf(HasSubstr("ranks disagree"), HasSubstr(OnOdd()),
                                AnyOf(HasSubstr("BeginStep of step 1 after"), HasSubstr("of first of plan"))));
  });
}

}  // namespace
}  // namespace reprise::testing
