#include "reprise/graph/recorder.h"

#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "graph/machine.h"
#include "reprise/graph/host_world.h"
#include "tests/testing/plan_builder.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using ::reprise::testing::IsOk;
using ::reprise::testing::PlanBuilder;
using ::reprise::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class NoExecutable : public Executable {
 public:
  absl::Status Replay() override { return absl::OkStatus(); }
};

// Counts what reaches it; fails at one command.
class FakeRecorder : public Recorder {
 public:
  struct Calls {
    int begin = 0, record = 0, finish = 0;
    int fail_at = -1;
  };
  explicit FakeRecorder(Calls* calls) : calls_(calls) {}
  absl::Status Begin(const Schedule&) override {
    ++calls_->begin;
    return absl::OkStatus();
  }
  absl::Status Record(CommandId id, const ScheduledCommand&) override {
    ++calls_->record;
    return id.value() == calls_->fail_at ? absl::UnavailableError("no more tape") : absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Executable>> Finish() override {
    ++calls_->finish;
    return std::make_unique<NoExecutable>();
  }

 private:
  Calls* const calls_;
};

// Two ranks. Begin, a gather, a forward that reads it, End.
struct Small {
  Plan plan;
  BufferId weights, gathered;

  Schedule& schedule() { return plan.schedules[0]; }
};
Small SmallPlan() {
  PlanBuilder b;
  const UnitId unit = b.Unit("u0", 128);
  const CallId call = b.Call("c0");
  const BufferId weights = b.Buffer("w0", Storage::kWeights, 128, 0);
  const BufferId gathered = b.Buffer("g0", Storage::kCommunicating, 256, 0);
  b.Start("body", 1);
  b.Command(Begin{}, Lane::kCompute);
  b.Command(AllGather{unit, 0, Transport::kNccl, AxisId(0)}, Lane::kAllGather,
            {b.Use(weights, Access::kRead, Role::kShard), b.Use(gathered, Access::kAssign, Role::kGathered)},
            {reprise::testing::Fork(0)});
  b.Command(Forward{call}, Lane::kCompute, {b.Use(gathered, Access::kRead, Role::kParameter)},
            {reprise::testing::Data(1)});
  b.Command(End{}, Lane::kCompute);
  return {b.Build(), weights, gathered};
}

std::shared_ptr<Bindings> Bind(const Plan& plan) {
  static std::byte memory[512];
  auto bindings = std::make_shared<Bindings>();
  bindings->plan = std::make_shared<const Plan>(plan);
  bindings->ranks = {0, 1};
  bindings->addresses.assign(2, std::vector<std::byte*>(plan.buffers.size(), memory));
  return bindings;
}

// Records the plan's first schedule through a validating recorder.
absl::Status Validate(const Plan& plan, std::shared_ptr<const Bindings> bindings) {
  FakeRecorder::Calls calls;
  const std::unique_ptr<Recorder> recorder =
      NewValidatingRecorder(std::move(bindings), std::make_unique<FakeRecorder>(&calls));
  return RecordSchedule(plan, plan.schedules[0], *recorder).status();
}

TEST(RecordScheduleTest, RecordsEveryCommandOnce) {
  const Small small = SmallPlan();
  FakeRecorder::Calls calls;
  FakeRecorder recorder(&calls);
  ASSERT_THAT(RecordSchedule(small.plan, small.plan.schedules[0], recorder), IsOk());
  EXPECT_EQ(calls.begin, 1);
  EXPECT_EQ(calls.record, 4);
  EXPECT_EQ(calls.finish, 1);
}

TEST(RecordScheduleTest, NamesTheCommandThatFails) {
  const Small small = SmallPlan();
  FakeRecorder::Calls calls{.fail_at = 2};
  FakeRecorder recorder(&calls);
  EXPECT_THAT(RecordSchedule(small.plan, small.plan.schedules[0], recorder),
              StatusIs(absl::StatusCode::kUnavailable, "command #2 (forward c0 microbatch 0): no more tape"));
  EXPECT_EQ(calls.record, 3);
}

TEST(ValidatingRecorderTest, PassesAGoodScheduleOn) {
  const Small small = SmallPlan();
  FakeRecorder::Calls calls;
  const std::unique_ptr<Recorder> recorder =
      NewValidatingRecorder(Bind(small.plan), std::make_unique<FakeRecorder>(&calls));
  ASSERT_THAT(RecordSchedule(small.plan, small.plan.schedules[0], *recorder), IsOk());
  EXPECT_EQ(calls.record, 4);
  EXPECT_EQ(calls.finish, 1);
}

struct Mistake {
  const char* name;
  std::function<void(Small&)> make;
  const char* message;
};

class ValidatingRecorderMistakeTest : public ::testing::TestWithParam<Mistake> {};

TEST_P(ValidatingRecorderMistakeTest, IsRefused) {
  Small small = SmallPlan();
  GetParam().make(small);
  EXPECT_THAT(Validate(small.plan, Bind(small.plan)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    Plans, ValidatingRecorderMistakeTest,
    ::testing::Values(
        Mistake{"WaitForALaterCommand", [](Small& s) { s.schedule().commands[1].waits = {reprise::testing::Data(2)}; },
                "command #1 (all_gather u0 slot 0 nccl): it waits for command #2"},
        Mistake{"WaitForItself", [](Small& s) { s.schedule().commands[2].waits = {reprise::testing::Data(2)}; },
                "it waits for command #2"},
        Mistake{"WaitForNoCommand", [](Small& s) { s.schedule().commands[2].waits = {reprise::testing::Data(-1)}; },
                "it waits for command #-1"},
        Mistake{"NoSuchBuffer", [](Small& s) { s.schedule().commands[2].uses[0].buffer = BufferId(9); },
                "it uses buffer 9 of 2"},
        Mistake{"UsePastTheEnd", [](Small& s) { s.schedule().commands[2].uses[0].offset = 1; },
                "its parameter is 256 bytes at 1 of buffer \"g0\", which has 256"},
        Mistake{"OverflowingUse", [](Small& s) { s.schedule().commands[2].uses[0].num_bytes = INT64_MAX; },
                "of buffer \"g0\", which has 256"},
        Mistake{
            "TwoLanesOfOneCommunicator",
            [](Small& s) {
              ScheduledCommand gather = s.schedule().commands[1];
              gather.lane = Lane::kReduceScatter;
              s.schedule().commands.insert(s.schedule().commands.begin() + 2, gather);
            },
            "it uses the all-gather communicator on lane reduce_scatter, but command #1 uses it on lane all_gather"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(ValidatingRecorderTest, RefusesNothingToRecordWith) {
  const Small small = SmallPlan();
  FakeRecorder::Calls calls;
  const auto expect = [&](std::shared_ptr<const Bindings> bindings, std::unique_ptr<Recorder> inner,
                          const char* words) {
    const std::unique_ptr<Recorder> recorder = NewValidatingRecorder(std::move(bindings), std::move(inner));
    const auto is_refused = StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words));
    EXPECT_THAT(recorder->Begin(small.plan.schedules[0]), is_refused);
    EXPECT_THAT(recorder->Record(CommandId(0), small.plan.schedules[0].commands[0]), is_refused);
    EXPECT_THAT(recorder->Finish(), is_refused);
  };
  expect(nullptr, nullptr, "needs bindings with a plan");
  expect(std::make_shared<Bindings>(), std::make_unique<FakeRecorder>(&calls), "needs bindings with a plan");
  expect(Bind(small.plan), nullptr, "there is no recorder to pass commands on to");
}

TEST(ValidatingRecorderTest, RefusesABufferWithoutAddress) {
  const Small small = SmallPlan();
  const std::shared_ptr<Bindings> bindings = Bind(small.plan);
  bindings->addresses[1][small.gathered.value()] = nullptr;
  EXPECT_THAT(Validate(small.plan, bindings),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("buffer \"g0\" has no address on rank 1")));
}

TEST(ValidatingRecorderTest, RefusesIncompleteBindings) {
  const Small small = SmallPlan();
  const std::shared_ptr<Bindings> bindings = Bind(small.plan);
  bindings->addresses[1].pop_back();
  EXPECT_THAT(Validate(small.plan, bindings),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 1 has 1 addresses for 2 buffers")));
  bindings->addresses.pop_back();
  EXPECT_THAT(Validate(small.plan, bindings),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("addresses for 1 ranks of 2")));
}

// ---- the protocol, the same for every recorder ----

class ProtocolTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string kind = GetParam();
    if (kind == "Validating") {
      recorder_ = NewValidatingRecorder(Bind(small_.plan), std::make_unique<FakeRecorder>(&calls_));
    } else if (kind == "Text") {
      recorder_ = NewTextRecorder(small_.plan, &text_);
    } else {
      const auto world = *CreateHostWorld({.size = 2});
      recorder_ = *internal::MachineOf(*world).NewRecorder(kind == "HostGraph" ? Execution::kGraph : Execution::kEager,
                                                           Bind(small_.plan));
    }
  }
  absl::Status Record(int command) {
    return recorder_->Record(CommandId(command), small_.schedule().commands[command]);
  }
  void ExpectRefusal(const absl::Status& status, const char* words) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(words)));
    EXPECT_FALSE(recorder_->Finish().ok()) << "it is spent";
  }

  Small small_ = SmallPlan();
  FakeRecorder::Calls calls_;
  std::string text_;
  std::unique_ptr<Recorder> recorder_;
};
INSTANTIATE_TEST_SUITE_P(Recorders, ProtocolTest, ::testing::Values("Validating", "Text", "HostGraph", "HostEager"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(ProtocolTest, RecordNeedsBegin) { ExpectRefusal(Record(0), "outside Begin and Finish"); }

TEST_P(ProtocolTest, FinishNeedsBegin) { ExpectRefusal(recorder_->Finish().status(), "before Begin"); }

TEST_P(ProtocolTest, BeginIsCalledOnce) {
  ASSERT_THAT(recorder_->Begin(small_.schedule()), IsOk());
  ExpectRefusal(recorder_->Begin(small_.schedule()), "Begin was called twice");
  EXPECT_LE(calls_.begin, 1);
}

TEST_P(ProtocolTest, NothingFollowsFinish) {
  ASSERT_THAT(recorder_->Begin(small_.schedule()), IsOk());
  for (int c = 0; c < 2; ++c) ASSERT_THAT(Record(c), IsOk());
  ExpectRefusal(recorder_->Finish().status(), "after 2 of 4 commands; record all of them");
  ExpectRefusal(Record(2), "outside Begin and Finish");
  EXPECT_FALSE(recorder_->Begin(small_.schedule()).ok());
  EXPECT_EQ(calls_.finish, 0);
}

TEST_P(ProtocolTest, CommandsComeInIssueOrder) {
  ASSERT_THAT(recorder_->Begin(small_.schedule()), IsOk());
  ExpectRefusal(Record(1), "record in issue order");
}

TEST_P(ProtocolTest, CommandsAreThoseOfTheSchedule) {
  ASSERT_THAT(recorder_->Begin(small_.schedule()), IsOk());
  ExpectRefusal(recorder_->Record(CommandId(0), small_.schedule().commands[1]),
                "command #0 is not that of the schedule");
}

TEST_P(ProtocolTest, SchedulesAreThoseOfThePlan) {
  PlanBuilder b;
  b.Call("c0");
  b.Start("body", 1);
  b.Command(Begin{}, Lane::kCompute);
  b.Command(Forward{CallId(7)}, Lane::kCompute, {{.buffer = BufferId(9), .num_bytes = 8, .role = Role::kParameter}});
  b.Command(End{}, Lane::kCompute);
  const Plan other = b.Build();
  EXPECT_THAT(RecordSchedule(other, other.schedules[0], *recorder_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("schedule \"body\" of 3 commands is none of the 1 schedules of the recorder's plan")));
  EXPECT_EQ(text_, "");
}

TEST(ValidatingRecorderTest, FinishIsPassedOnOnce) {
  Small small = SmallPlan();
  FakeRecorder::Calls calls;
  const auto recorder = NewValidatingRecorder(Bind(small.plan), std::make_unique<FakeRecorder>(&calls));
  ASSERT_THAT(RecordSchedule(small.plan, small.schedule(), *recorder), IsOk());
  EXPECT_THAT(recorder->Finish(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("Finish was called twice")));
  EXPECT_EQ(calls.finish, 1);
}

TEST(ValidatingRecorderTest, AnErrorIsFinal) {
  Small small = SmallPlan();
  FakeRecorder::Calls calls{.fail_at = 1};
  const auto recorder = NewValidatingRecorder(Bind(small.plan), std::make_unique<FakeRecorder>(&calls));
  const auto record = [&](int c) { return recorder->Record(CommandId(c), small.schedule().commands[c]); };
  ASSERT_THAT(recorder->Begin(small.schedule()), IsOk());
  ASSERT_THAT(record(0), IsOk());
  const absl::Status error = record(1);
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kUnavailable, "no more tape"));
  EXPECT_EQ(record(2), error);
  EXPECT_EQ(recorder->Finish().status(), error);
  EXPECT_EQ(calls.record, 2);
  EXPECT_EQ(calls.finish, 0);
}

TEST(HostRecorderTest, FinishesOnce) {
  const Small small = SmallPlan();
  const auto bindings = Bind(small.plan);
  bindings->compute[CallId(0)].forward = [](ComputeContext&) { return absl::OkStatus(); };
  const auto world = *CreateHostWorld({.size = 2});
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto recorder,
                               internal::MachineOf(*world).NewRecorder(Execution::kGraph, bindings));
  ASSERT_THAT(RecordSchedule(small.plan, small.plan.schedules[0], *recorder), IsOk());
  EXPECT_THAT(recorder->Finish(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("Finish was called twice")));
  EXPECT_FALSE(recorder->Begin(small.plan.schedules[0]).ok());
}

TEST(TextRecorderTest, RefusesNoString) {
  const Small small = SmallPlan();
  EXPECT_THAT(RecordSchedule(small.plan, small.plan.schedules[0], *NewTextRecorder(small.plan, nullptr)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no string to append text to")));
}

TEST(TextRecorderTest, WritesTheLinesOfToText) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, StackModel(3, {8, 8}, DType::kBFloat16, 4));
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(model, 2, {}));
  const std::string whole = ToText(plan);
  for (const Schedule& schedule : plan.schedules) {
    std::string text;
    const std::unique_ptr<Recorder> recorder = NewTextRecorder(plan, &text);
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Executable> executable,
                                 RecordSchedule(plan, schedule, *recorder));
    EXPECT_THAT(executable->Replay(), IsOk());
    EXPECT_THAT(whole, HasSubstr(text));
    const std::vector<std::string> lines = absl::StrSplit(text, '\n');
    ASSERT_EQ(lines.size(), schedule.commands.size() + 1);  // the last one is empty
    EXPECT_THAT(lines[0], StartsWith("  #0"));
    EXPECT_THAT(lines[schedule.commands.size() - 1], HasSubstr("end"));
  }
}

}  // namespace
}  // namespace reprise
