#include "reprise/core/cost_model.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/control_block.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "tests/testing/plan_builder.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using ::reprise::testing::Data;
using ::reprise::testing::IsOk;
using ::reprise::testing::PlanBuilder;
using ::reprise::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// ---- FLOPs ----

TEST(EstimateFlopsTest, ALinearLayerMultipliesItsRowsByItsMatrix) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, StackModel(1, {6, 5}, DType::kBFloat16, 7));
  EXPECT_EQ(EstimateFlops(model, CallId(0)), (CallFlops{2 * 7 * 30, 4 * 7 * 30}));
  EXPECT_EQ(EstimateFlops(model, CallId(1)), CallFlops());  // the loss, which has no parameter
}

// A model of one call that has all kinds of parameters.
CallFlops FlopsOf(const Shape& input, const Shape& output) {
  ModelBuilder builder;
  const UnitId table = builder.AddUnit("table"), head = builder.AddUnit("head"), other = builder.AddUnit("other");
  builder.AddParameter(table, {.name = "rows", .shape = {1000, 4}});
  const ParameterId tied = builder.AddParameter(other, {.name = "tied", .shape = {3, 4}});
  builder.AddParameter(head, {.name = "weight", .shape = {2, 5, 4}});
  builder.AddParameter(head, {.name = "bias", .shape = {100}});
  const TensorId x = builder.AddInput({.name = "x", .shape = input});
  const TensorId loss = builder.AddOutput({.name = "loss", .dtype = DType::kFloat32});
  const TensorId y = builder.AddOutput({.name = "y", .shape = output});
  builder.AddCall({.name = "c",
                   .units = {head},
                   .parameters = {tied},
                   .inputs = {x},
                   .outputs = {loss, y},
                   .forward_only_units = {table}});
  return EstimateFlops(*builder.Build(), CallId(0));
}

TEST(EstimateFlopsTest, CountsMatricesThatAreMultiplied) {
  constexpr int kElements = 3 * 4 + 2 * 5 * 4;  // neither the bias nor the table that is looked up
  EXPECT_EQ(FlopsOf({7, 4}, {2, 3, 9}), (CallFlops{2.0 * 6 * kElements, 4.0 * 6 * kElements}));
}

TEST(EstimateFlopsTest, RowsAreOfTheInputWhereEveryOutputIsAScalar) {
  EXPECT_EQ(FlopsOf({7, 4}, {}).forward, 2.0 * 7 * (12 + 40));
  EXPECT_EQ(FlopsOf({}, {}), CallFlops());
}

// ---- prediction ----

// One byte, or one FLOP, takes a microsecond in compute, 4 when gathered and 5 when reduced.
CostModel SlowCosts() {
  return {.flops = 1e6,
          .memory_bandwidth = 1e6,
          .gather_bandwidth = 0.25e6,
          .reduce_bandwidth = 0.2e6,
          .collective_us = 1000,
          .command_us = 100,
          .calls = {{"c0", {.forward = 10, .backward = 20}}}};
}

// A use of that many bytes.
BufferUse Use(int64_t num_bytes, Access access) {
  return {.buffer = BufferId(0), .num_bytes = num_bytes, .access = access};
}

// Collectives of u0 move 128 bytes.
Plan EveryCommand() {
  PlanBuilder b;
  const UnitId u0 = b.Unit("u0", 128);
  const CallId c0 = b.Call("c0"), c1 = b.Call("c1");
  b.Start("body", 1);
  b.Command(Begin{}, Lane::kCompute);
  b.Command(AllGather{u0, 0, Transport::kNccl, AxisId(0)}, Lane::kAllGather, {Use(9, Access::kAssign)},
            {testing::Fork(0)});
  b.Command(NextMicrobatch{}, Lane::kCompute, {Use(8, Access::kUpdate)});
  b.Command(StageInputs{}, Lane::kCompute, {Use(8, Access::kRead), Use(4, Access::kAssign)});  // one of two slots
  b.Command(Forward{c0}, Lane::kCompute, {Use(1, Access::kRead)}, {Data(1)});
  b.Command(Forward{c1}, Lane::kCompute, {Use(1, Access::kRead), Use(2, Access::kAssign)});
  b.Command(Forward{c0, 0, true}, Lane::kCompute);
  b.Command(Backward{c0}, Lane::kCompute);
  b.Command(PackGradients{u0}, Lane::kCompute, {Use(5, Access::kRead), Use(6, Access::kAssign)});
  b.Command(ReduceScatter{u0, 0, 0, Transport::kNccl, Sum::kNccl, AxisId(0)}, Lane::kReduceScatter, {}, {Data(8)});
  b.Command(Accumulate{u0}, Lane::kReduceScatter, {Use(1, Access::kRead), Use(2, Access::kUpdate)});
  b.Command(RecordLoss{}, Lane::kCompute, {Use(7, Access::kUpdate)});
  b.Command(End{}, Lane::kCompute, {}, {testing::Join(10)});
  b.Start("step", 0);
  b.Command(Begin{}, Lane::kCompute);
  b.Command(SumNorm{AxisId(0)}, Lane::kReduceScatter, {}, {testing::Fork(0)});
  b.Command(UpdateParameters{u0}, Lane::kCompute, {Use(60, Access::kUpdate)}, {Data(1)});
  b.Command(RefreshShards{u0}, Lane::kCompute, {Use(70, Access::kAssign)});
  b.Command(PublishMetrics{}, Lane::kCompute, {Use(80, Access::kUpdate)});
  b.Command(End{}, Lane::kCompute);
  return b.Build();
}

TEST(PredictTimelineTest, EveryCommandTakesWhatTheModelSaysOnceItsLaneAndWaitsAreDone) {
  const auto span = [](int replay, int command, double start_us, double microseconds) {
    return CommandSpan{.replay = replay,
                       .schedule = replay,
                       .command = CommandId(command),
                       .start_us = start_us,
                       .end_us = start_us + microseconds};
  };
  const double gathered = 1000 + 128 * 4;
  const double packed = gathered + 110 + 103 + 110 + 120;  // when it starts
  const double reduced = packed + 111;
  const double end = reduced + 1000 + 128 * 5 + 100 + 1 + 2 * 2;
  const Timeline expected = {{span(0, 1, 0, gathered), span(0, 2, 0, 100 + 2 * 8), span(0, 3, 116, 100 + 4 + 4),
                              span(0, 4, gathered, 100 + 10), span(0, 5, gathered + 110, 100 + 1 + 2),
                              span(0, 6, gathered + 213, 100 + 10), span(0, 7, gathered + 323, 100 + 20),
                              span(0, 8, packed, 100 + 5 + 6), span(0, 9, reduced, 1000 + 128 * 5),
                              span(0, 10, reduced + 1640, 100 + 1 + 2 * 2), span(0, 11, reduced, 100 + 2 * 7),
                              // The step starts when the body has ended on all lanes.
                              span(1, 1, end, 1000), span(1, 2, end + 1000, 100 + 120),
                              span(1, 3, end + 1220, 100 + 70), span(1, 4, end + 1390, 100 + 160)}};
  REPRISE_ASSERT_OK_AND_ASSIGN(const Timeline timeline, PredictTimeline(EveryCommand(), {0, 1}, SlowCosts()));
  ASSERT_EQ(timeline.spans.size(), expected.spans.size());
  for (size_t s = 0; s < expected.spans.size(); ++s) {
    EXPECT_EQ(timeline.spans[s], expected.spans[s])
        << "span " << s << ": " << timeline.spans[s].start_us << " to " << timeline.spans[s].end_us << ", not "
        << expected.spans[s].start_us << " to " << expected.spans[s].end_us;
  }
}

// Of its reduce buffer, which it names whole, a rank adds its own part to what it received.
TEST(PredictTimelineTest, AnAccumulateReadsOnePartOfEachRank) {
  constexpr int kRanks = 4;
  constexpr double kShard = 512 * 512 / kRanks, kRanges = 4;
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, StackModel(2, {512, 512}, DType::kBFloat16, 4));
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan,
                               PlanTraining(model, kRanks, {.transports = EveryUnit(Transport::kCopyEngine)}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const Timeline timeline,
                               PredictTimeline(plan, {plan.first}, {.memory_bandwidth = 1e6, .command_us = 0}));
  int accumulates = 0;
  for (const CommandSpan& span : timeline.spans) {
    const Command& command = plan.schedules[plan.first].commands[span.command.value()].command;
    if (!std::holds_alternative<Accumulate>(command)) continue;
    ++accumulates;
    EXPECT_NEAR(span.end_us - span.start_us,
                kRanks * 2 * kShard + 2 * 4 * kShard + 2 * 8 * kRanges + sizeof(ControlBlock), 1);
  }
  EXPECT_EQ(accumulates, 2);
}

TEST(PredictTimelineTest, NoScheduleGivesNoSpan) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const Timeline timeline, PredictTimeline(EveryCommand(), {}, {}));
  EXPECT_TRUE(timeline.spans.empty());
}

TEST(PredictTimelineTest, RefusesWhatItCannotPredict) {
  const Plan plan = EveryCommand();
  const auto refuses = [&](const std::vector<int>& schedules, const CostModel& costs, const std::string& message) {
    EXPECT_THAT(PredictTimeline(plan, schedules, costs),
                StatusIs(absl::StatusCode::kInvalidArgument, ::testing::AllOf(HasSubstr(message), HasSubstr("; "))));
  };
  refuses({0, 2}, {}, "there is no schedule 2 to predict; the plan has 2");
  refuses({-1}, {}, "there is no schedule -1 to predict");
  refuses({0}, {.flops = 0}, "flops is 0; give a positive number");
  refuses({0}, {.memory_bandwidth = -1}, "memory_bandwidth is -1");
  refuses({0}, {.gather_bandwidth = std::numeric_limits<double>::quiet_NaN()}, "gather_bandwidth is nan");
  refuses({0}, {.reduce_bandwidth = std::numeric_limits<double>::infinity()}, "reduce_bandwidth is inf");
  refuses({0}, {.collective_us = -1}, "collective_us is -1; give a finite number of at least 0");
  refuses({0}, {.command_us = -1}, "command_us is -1");
  refuses({0}, {.calls = {{"c0", {.forward = -1}}}}, "forward of call \"c0\" is -1");
  refuses({0}, {.calls = {{"c1", {.backward = -1}}}}, "backward of call \"c1\" is -1");
  refuses({0}, {.calls = {{"c2", {}}}}, "FLOPs of call \"c2\", which is none of the model's 2");
  refuses({0}, {.flops = 1e-300, .calls = {{"c0", {.backward = 1}}}},
          "replay 0 of 1 would end after 1e+306 microseconds");
  refuses(std::vector<int>(1 << 20, 0), {}, "commands, but at most 4194304 are predicted");
  Plan broken = plan;
  broken.schedules[0].commands[1].waits = {Data(1)};
  EXPECT_THAT(PredictTimeline(broken, {0}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("waits for command 1, which is none before it")));
  broken = plan;
  broken.schedules[0].commands[1].lane = static_cast<Lane>(77);
  EXPECT_THAT(PredictTimeline(broken, {0}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is on lane 77, which does not exist")));
}

}  // namespace
}  // namespace reprise
