// A training that comes to nothing says so, and ends with an error.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>

#include "examples/train_lm/progress.h"
#include "tests/testing/run_executable.h"
#include "tests/testing/status_matchers.h"

namespace reprise::examples {
namespace {

using reprise::testing::FinishedRun;
using reprise::testing::IsOk;
using reprise::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(ProgressTest, AStepNowAndThenMayBeSkipped) {
  Progress progress(100);
  for (int64_t step = 0; step < 100; ++step) {
    progress.Add({.step = step, .loss = 1, .skipped = step % 50 == 7 || step == 99});
    EXPECT_THAT(progress.Check(), IsOk());
    EXPECT_EQ(progress.TakeSkipped(),
              step % 50 == 7 || step == 99
                  ? "step " + std::to_string(step + 1) +
                        "/100 was skipped: the gradient was not finite, so that no parameter changed\n"
                  : "");
  }
}

TEST(ProgressTest, SkippedStepsAreToldTogetherAndOnce) {
  Progress progress(100);
  for (const int64_t step : {3, 4, 8}) progress.Add({.step = step, .loss = 1, .skipped = true});
  EXPECT_THAT(progress.TakeSkipped(), HasSubstr("3 steps from 4 to 9 of 100 were skipped: "));
  EXPECT_EQ(progress.TakeSkipped(), "");
}

TEST(ProgressTest, NothingButSkippedStepsIsAnError) {
  for (const int steps : {1, 3, 100}) {
    Progress progress(steps);
    const int limit = std::min(steps, Progress::kMaxSkippedInARow);
    for (int step = 0; step < limit; ++step) {
      EXPECT_THAT(progress.Check(), IsOk());
      progress.Add({.step = step, .loss = 1, .skipped = true});
    }
    EXPECT_THAT(progress.Check(), StatusIs(absl::StatusCode::kAborted,
                                           HasSubstr(std::to_string(limit) + " steps in a row were skipped; use a "
                                                                             "smaller --lr")));
    progress.Add({.step = limit, .loss = 1});
    EXPECT_THAT(progress.Check(), IsOk());
  }
}

TEST(ProgressTest, ALossThatIsNotFiniteIsAnError) {
  for (const bool skipped : {false, true}) {
    Progress progress(100);
    progress.Add({.step = 4, .loss = kNan, .skipped = skipped});
    EXPECT_THAT(progress.Check(), StatusIs(absl::StatusCode::kAborted,
                                           HasSubstr("training ended at step 5 of 100: the loss is nan, and ")));
  }
}

class TrainLmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "train_lm_test.txt";
    std::ofstream text(path_);
    for (int line = 0; line < 2000; ++line) text << "line " << line * 7919 % 1000 << " of a text that repeats\n";
  }
  void TearDown() override { std::remove(path_.c_str()); }

  FinishedRun Run(const std::string& arguments) {
    return reprise::testing::RunExecutable(REPRISE_TRAIN_LM,
                                           "--data='" + path_ +
                                               "' --device=host --ranks=2 --depth=1 --width=16 --heads=2 --context=16 "
                                               "--batch=2 --microbatches=1 " +
                                               arguments + " 2>&1");
  }

  std::string path_;
};

TEST_F(TrainLmTest, ALearningRateThatBreaksTheParametersEndsWithAnError) {
  const FinishedRun run = Run("--steps=50 --lr=3e38");
  EXPECT_NE(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("skipped: the gradient was not finite"), HasSubstr("training ended at step "),
                                HasSubstr("use a smaller --lr"), HasSubstr("on rank 0 "), HasSubstr(" of call \""),
                                Not(HasSubstr("validation:"))));
}

TEST_F(TrainLmTest, AnUpdateThatBreaksTheParametersInTheLastStepEndsWithAnError) {
  const FinishedRun run = Run("--steps=1 --lr=3e38");
  EXPECT_NE(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("the validation loss is not finite"));
}

TEST_F(TrainLmTest, AnOrdinaryOneEndsWell) {
  const FinishedRun run = Run("--steps=50 --lr=3e-3");
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("step 50/50"), HasSubstr("validation:"), Not(HasSubstr("skipped"))));
}

TEST_F(TrainLmTest, LearningRatesThatAreNoneAreRefused) {
  for (const char* rate : {"0", "-1", "nan", "inf", "1e39", "1e-60"}) {
    const FinishedRun run = Run(std::string("--steps=1 --lr=") + rate);
    EXPECT_NE(run.exit_code, 0);
    EXPECT_THAT(run.output, HasSubstr("but must be positive and a finite float")) << run.output;
  }
}

}  // namespace
}  // namespace reprise::examples
