// A training that comes to nothing says so, and ends with an error.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "examples/train_lm/printable.h"
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
    EXPECT_EQ(progress.TakeSkipped(), step % 50 == 7 || step == 99 ? "skipped: step " + std::to_string(step) +
                                                                         ", because the gradient was not finite"
                                                                   : "");
  }
}

TEST(ProgressTest, SkippedStepsAreToldTogetherAndOnce) {
  Progress progress(100);
  for (const int64_t step : {3, 4, 8}) progress.Add({.step = step, .loss = 1, .skipped = true});
  EXPECT_THAT(progress.TakeSkipped(), HasSubstr("skipped: 3 steps from 3 to 8, because "));
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
    EXPECT_THAT(progress.Check(),
                StatusIs(absl::StatusCode::kAborted,
                         HasSubstr("training ended at step 4 (the last would be 99): the loss is nan, and ")));
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
  EXPECT_THAT(run.output, AllOf(HasSubstr("because the gradient was not finite"), HasSubstr("training ended at step "),
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
  EXPECT_THAT(run.output, AllOf(HasSubstr("training for 50 steps, the first is step 0\n"), HasSubstr("\nstep 0 "),
                                HasSubstr("\nstep 49 "), HasSubstr("validation:"), Not(HasSubstr("skipped"))));
}

// Every text of one run means the same step by the same number, and a step has one line.
TEST_F(TrainLmTest, ASkippedStepHasOneLineAndOneNumber) {
  for (const int steps : {3, 50}) {
    const FinishedRun run = Run("--steps=" + std::to_string(steps) + " --lr=3e38");
    EXPECT_EQ(run.exit_code, 1) << run.output;
    std::istringstream lines(run.output);
    std::vector<int> told;
    int began = -1, ended = -1, step = -1;
    for (std::string line; std::getline(lines, line);) {
      if (std::sscanf(line.c_str(), "step %d", &step) == 1) told.push_back(step);
      if (std::sscanf(line.c_str(), "where it began: step %d, microbatch 0: on rank", &step) == 1) began = step;
      if (std::sscanf(line.c_str(), "train_lm: training ended at step %d", &step) == 1) ended = step;
      EXPECT_EQ(line.find("skipped: ") != std::string::npos, line.rfind("step ", 0) == 0 && step > 0) << line;
    }
    ASSERT_FALSE(told.empty()) << run.output;
    EXPECT_EQ(told[0], 0) << run.output;
    EXPECT_EQ(std::adjacent_find(told.begin(), told.end(), std::greater_equal<>()), told.end()) << run.output;
    EXPECT_EQ(told.back(), ended) << run.output;
    EXPECT_EQ(began, ended) << run.output;
  }
}

TEST(PrintableTest, TextStaysAndTheRestIsEscaped) {
  const std::pair<std::string, std::string> cases[] = {
      {"", ""},
      {"In the beginning\n\tGod \"created\" a\\b", "In the beginning\n\tGod \"created\" a\\b"},
      {"\u00e9\u2019\u4e2d\U0001F600", "\u00e9\u2019\u4e2d\U0001F600"},
      {"a\x1b[31m\r\x7f", "a\\x1b[31m\\r\\x7f"},
      {std::string("\0", 1), "\\x00"},
      {"\x80\xc3\xa9\xff", "\\x80\u00e9\\xff"},               // a continuation byte; a character; no UTF-8 at all
      {"\xe4\xb8", "\\xe4\\xb8"},                             // cut off
      {"\xc0\xaf\xed\xa0\x80", "\\xc0\\xaf\\xed\\xa0\\x80"},  // overlong; a surrogate
      {"\u202e\u200b", "\\xe2\\x80\\xae\\xe2\\x80\\x8b"},     // turns the line round; cannot be seen
  };
  for (const auto& [bytes, printed] : cases) EXPECT_EQ(Printable(bytes), printed);
}

// The text is one that a model knows after a few steps.
TEST_F(TrainLmTest, TheSampleIsText) {
  std::ofstream text(path_);
  for (int line = 0; line < 4000; ++line) text << "\u00e9\n";
  text.close();
  const FinishedRun run = Run("--steps=400 --lr=1e-2");
  EXPECT_EQ(run.exit_code, 0) << run.output;
  const size_t sample = run.output.find("\nsample:\n");
  ASSERT_NE(sample, std::string::npos) << run.output;
  EXPECT_THAT(run.output.substr(sample), HasSubstr("\u00e9\n\u00e9\n\u00e9\n"));
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
