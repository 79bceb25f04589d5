#include "graph/recorder.h"

#include <utility>

#include "tests/testing/plan_builder.h"
#include "tests/testing/status_matchers.h"

namespace reprise::internal {
namespace {

using ::reprise::testing::IsOk;
using ::reprise::testing::PlanBuilder;
using ::reprise::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NoExecutable : public Executable {
 public:
  absl::Status Replay() override { return absl::OkStatus(); }
};

// Notes what reaches it; fails at one command.
class FakeRecorder : public Recorder {
 public:
  explicit FakeRecorder(std::shared_ptr<const Bindings> bindings, int fail_at = -1)
      : Recorder(std::move(bindings)), fail_at_(fail_at) {}
  const std::vector<std::string>& calls() const { return calls_; }

 private:
  absl::Status Begin() override {
    calls_.push_back("begin " + schedule().name);
    return absl::OkStatus();
  }
  absl::Status Record(CommandId id, const ScheduledCommand& command) override {
    EXPECT_EQ(&command, &schedule().commands[id.value()]) << "it is the plan's own";
    calls_.push_back(Describe(*bindings()->plan, command.command));
    return id.value() == fail_at_ ? absl::UnavailableError("no more tape") : absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Executable>> Finish() override {
    calls_.push_back("finish");
    return std::make_unique<NoExecutable>();
  }

  const int fail_at_;
  std::vector<std::string> calls_;
};

// Two schedules: Begin, a forward, End; and Begin, End.
std::shared_ptr<Bindings> TwoSchedules() {
  PlanBuilder b;
  const CallId call = b.Call("c0");
  b.Start("body", 1);
  b.Command(reprise::Begin{}, Lane::kCompute);
  b.Command(Forward{call}, Lane::kCompute);
  b.Command(End{}, Lane::kCompute);
  b.Start("step", 0);
  b.Command(reprise::Begin{}, Lane::kCompute);
  b.Command(End{}, Lane::kCompute);
  auto bindings = std::make_shared<Bindings>();
  bindings->plan = std::make_shared<const Plan>(b.Build());
  return bindings;
}

TEST(RecordScheduleTest, RecordsEveryCommandOnce) {
  FakeRecorder body(TwoSchedules()), step(TwoSchedules());
  ASSERT_THAT(RecordSchedule(0, body), IsOk());
  EXPECT_THAT(body.calls(), ElementsAre("begin body", "begin", "forward c0 microbatch 0", "end", "finish"));
  ASSERT_THAT(RecordSchedule(1, step), IsOk());
  EXPECT_THAT(step.calls(), ElementsAre("begin step", "begin", "end", "finish"));
}

TEST(RecordScheduleTest, NamesTheCommandThatFails) {
  FakeRecorder recorder(TwoSchedules(), /*fail_at=*/1);
  EXPECT_THAT(RecordSchedule(0, recorder),
              StatusIs(absl::StatusCode::kUnavailable, "command #1 (forward c0 microbatch 0): no more tape"));
  EXPECT_THAT(recorder.calls(), ElementsAre("begin body", "begin", "forward c0 microbatch 0"));
}

TEST(RecordScheduleTest, TakesARecorderOnce) {
  for (const int fail_at : {-1, 1}) {
    FakeRecorder recorder(TwoSchedules(), fail_at);
    EXPECT_EQ(RecordSchedule(0, recorder).ok(), fail_at < 0);
    const size_t calls = recorder.calls().size();
    EXPECT_THAT(RecordSchedule(1, recorder),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("schedule 1 of 2 cannot be recorded after 0; use a new recorder for each")));
    EXPECT_EQ(recorder.calls().size(), calls);
  }
}

TEST(RecordScheduleTest, RefusesSchedulesThatThePlanHasNot) {
  for (const int schedule : {-1, 2}) {
    FakeRecorder recorder(TwoSchedules());
    EXPECT_THAT(RecordSchedule(schedule, recorder),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("of 2 cannot be recorded")));
    EXPECT_THAT(recorder.calls(), ElementsAre());
  }
}

}  // namespace
}  // namespace reprise::internal
