#include "reprise/core/timeline.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/core/planner.h"
#include "tests/core/timeline_plan.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using ::reprise::testing::IsOk;
using ::reprise::testing::Span;
using ::reprise::testing::StatusIs;
using ::reprise::testing::TimelinePlan;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// ---- bytes ----

// 10 elements of bf16 reduced in f32 are padded to 256 on four ranks, 300 frozen ones of f32 to 512: a rank holds 64 of
// the former and 128 of the latter.
TEST(TransferredBytesTest, AreThoseOfTheOtherRanks) {
  ModelBuilder builder;
  const UnitId unit = builder.AddUnit("u");
  builder.AddParameter(unit, {.name = "w", .shape = {10}, .reduce_dtype = DType::kFloat32});
  builder.AddParameter(unit, {.name = "f", .shape = {300}, .dtype = DType::kFloat32, .trainable = false});
  const TensorId x = builder.AddInput({.name = "x", .shape = {1}});
  const TensorId loss = builder.AddOutput({.name = "loss", .dtype = DType::kFloat32});
  builder.AddCall({.name = "c", .units = {unit}, .inputs = {x}, .outputs = {loss}, .saved = {x}});
  builder.SetLoss(loss);
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, builder.Build());
  for (const Transport transport : {Transport::kNccl, Transport::kSymmetric}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(model, 4, {.transports = EveryUnit(transport)}));
    EXPECT_EQ(TransferredBytes(plan, AllGather{unit, 0, Transport::kNccl, AxisId(0)}),
              (256 - 64) * 2 + (512 - 128) * 4);
    EXPECT_EQ(TransferredBytes(plan, ReduceScatter{unit, 0, 0, transport, Sum::kRankOrder, AxisId(0)}), (256 - 64) * 4);
    EXPECT_EQ(TransferredBytes(plan, Forward{CallId(0)}), 0);
    EXPECT_EQ(TransferredBytes(plan, SumNorm{AxisId(0)}), 0);
  }
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan alone, PlanTraining(model, 1, {}));
  EXPECT_EQ(TransferredBytes(alone, AllGather{unit, 0, Transport::kNccl, AxisId(0)}), 0);
}

// ---- JSON ----

Timeline ExampleTimeline() {
  CommandSpan compute = {.rank = 1, .replay = 2, .schedule = 0, .command = CommandId(3), .start_us = 0.1, .end_us = 7};
  compute.activities = {
      {.kind = ActivityKind::kKernel, .name = "a<\"b\">\\ \xc3\xa4", .stream = -3, .start_us = 0.1, .end_us = 1e-9 + 1},
      {.kind = ActivityKind::kCopy,
       .stream = 9007199254740993,
       .start_us = 2,
       .end_us = 2,
       .num_bytes = int64_t{1} << 62},
      {.kind = ActivityKind::kFill, .start_us = -5, .end_us = 7, .num_bytes = 1}};
  return {{Span(1, 0, 1.0 / 3), compute}};
}

TEST(TimelineJsonTest, SurvivesTheWayThroughJson) {
  for (const Timeline& timeline : {Timeline(), ExampleTimeline()}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const Timeline read, TimelineFromJson(ToJson(timeline)));
    EXPECT_EQ(read, timeline) << ToJson(timeline);
    EXPECT_EQ(ToJson(read), ToJson(timeline));
  }
}

TEST(TimelineJsonTest, WritesOneSpanPerLineAndLeavesOutWhatIsEmpty) {
  EXPECT_EQ(ToJson({{Span(1, 0, 2.5), Span(2, 2.5, 4)}}),
            "{\"spans\": [\n"
            R"({"rank":0,"replay":0,"schedule":0,"command":1,"start_us":0.0,"end_us":2.5},)"
            "\n"
            R"({"rank":0,"replay":0,"schedule":0,"command":2,"start_us":2.5,"end_us":4.0})"
            "\n]}\n");
}

TEST(TimelineJsonTest, ANameThatIsNotUtf8DoesNotThrow) {
  Timeline timeline = ExampleTimeline();
  timeline.spans[1].activities[0].name = "\xff";
  REPRISE_ASSERT_OK_AND_ASSIGN(const Timeline read, TimelineFromJson(ToJson(timeline)));
  EXPECT_EQ(read.spans[1].activities[0].name, "\xef\xbf\xbd");  // the replacement character
}

TEST(TimelineJsonTest, RefusesEveryMistakeByItsPlace) {
  struct Mistake {
    std::string from, to, message;
  };
  const std::vector<Mistake> mistakes = {
      {"{\"spans\": [", "[", "JSON text: no valid JSON"},
      {"\"spans\"", "\"span\"", "JSON text: unknown key \"span\"; the keys are spans"},
      {"\"rank\":1", "\"rank\":1,\"rank\":1", "JSON text: the key \"rank\" stands twice"},
      {"\"rank\":1,", "", "spans[1]: the key \"rank\" is missing"},
      {"\"rank\":1", "\"rank\":-1", "spans[1].rank: is -1; give an integer from 0"},
      {"\"rank\":1", "\"rank\":2147483648", "spans[1].rank: is 2147483648; give an integer from 0 to 2147483647"},
      {"\"rank\":1", "\"rank\":1e99", "spans[1].rank: is 1e+99; give an integer"},
      {"\"rank\":1", "\"rank\":1.0", "spans[1].rank: is 1.0; give an integer"},
      {"\"rank\":1", "\"color\":1", "spans[1]: unknown key \"color\""},
      {"\"command\":3", "\"command\":\"3\"", "spans[1].command: is of type string"},
      {"\"command\":3", "\"command\":null", "spans[1].command: is of type null"},
      {"\"start_us\":0.1,\"end_us\":7.0", "\"start_us\":8,\"end_us\":7.0", "spans[1]: goes from 8 to 7 microseconds"},
      {"\"end_us\":7.0,\"act", "\"end_us\":1e300,\"act", "spans[1]: goes from 0.1 to 1e+300 microseconds"},
      {"\"end_us\":7.0,\"act", "\"end_us\":1e999,\"act", "JSON text: no valid JSON"},
      {"\"end_us\":7.0,\"act", "\"end_us\":NaN,\"act", "JSON text: no valid JSON"},
      {"\"end_us\":7.0,\"act", "\"end_us\":true,\"act", "spans[1].end_us: is of type boolean; give a number"},
      {"\"kernel\"", "\"graph\"", "spans[1].activities[0].kind: unknown kind \"graph\"; use one of \"kernel\""},
      {"\"start_us\":2.0", "\"start_us\":3.0", "spans[1].activities[1]: goes from 3 to 2 microseconds"},
      {"\"num_bytes\":1}", "\"num_bytes\":-1}", "spans[1].activities[2].num_bytes: is -1; give 0 or more"},
      {"\"activities\":[", "\"activities\":[[],", "spans[1].activities[0]: is of type array; give an object"},
  };
  const std::string example = ToJson(ExampleTimeline());
  for (const Mistake& mistake : mistakes) {
    const size_t at = example.find(mistake.from);
    ASSERT_NE(at, std::string::npos) << mistake.from << " in " << example;
    std::string text = example;
    text.replace(at, mistake.from.size(), mistake.to);
    EXPECT_THAT(TimelineFromJson(text), StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(mistake.message)));
  }
  for (const char* text : {"null", "[]", "7", "\"spans\""}) {
    EXPECT_THAT(TimelineFromJson(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("give an object")));
  }
}

TEST(TimelineJsonTest, EveryCutIsRefused) {
  const std::string example = ToJson(ExampleTimeline());
  const size_t end = example.rfind('}');
  for (size_t length = 0; length <= end; ++length) {
    EXPECT_THAT(TimelineFromJson(example.substr(0, length)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("JSON text: ")));
  }
  EXPECT_THAT(TimelineFromJson(example.substr(0, end + 1)), IsOk());
}

// ---- Chrome's trace format ----

std::vector<nlohmann::json> EventsOf(const std::string& trace, const std::string& kind) {
  std::vector<nlohmann::json> events;
  const nlohmann::json json = nlohmann::json::parse(trace);
  for (const nlohmann::json& event : json["traceEvents"]) {
    if (event["ph"] == kind) events.push_back(event);
  }
  return events;
}

TEST(ChromeTraceTest, HasASlicePerCommandOnTheTrackOfItsLane) {
  Timeline timeline = {{Span(1, 0, 10.0004), Span(3, 10.0004, 16)}};
  timeline.spans.push_back(timeline.spans[1]);
  timeline.spans[2].rank = 1;
  timeline.spans[2].replay = 4;
  const Plan plan = TimelinePlan("u \"0\"");
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::string trace, ToChromeTrace(plan, timeline, "predicted"));
  const std::vector<nlohmann::json> slices = EventsOf(trace, "X");
  ASSERT_EQ(slices.size(), 3u);
  EXPECT_EQ(slices[0], nlohmann::json::parse(R"({"ph": "X", "pid": 0, "tid": 1, "ts": 0.0, "dur": 10.0,
      "name": "all_gather u \"0\" slot 0 nccl", "args": {"schedule": "body", "replay": 0, "command": 1, "bytes": 256}})"));
  EXPECT_EQ(slices[1], nlohmann::json::parse(R"({"ph": "X", "pid": 0, "tid": 0, "ts": 10.0, "dur": 6.0,
      "name": "forward c0 microbatch 0", "args": {"schedule": "body", "replay": 0, "command": 3}})"));
  EXPECT_EQ(slices[2]["pid"], 1);
  EXPECT_EQ(slices[2]["args"]["replay"], 4);
  std::vector<std::string> names;
  for (const nlohmann::json& event : EventsOf(trace, "M")) {
    const bool of_track = event["name"] == "thread_name";
    if (!of_track && event["name"] != "process_name") continue;
    names.push_back(absl::StrCat(event["pid"].get<int>(), of_track ? absl::StrCat(".", event["tid"].get<int>()) : "",
                                 " ", event["args"]["name"].get<std::string>()));
  }
  EXPECT_THAT(names, ::testing::ElementsAre("0 rank 0, predicted", "0.0 compute", "0.1 all_gather",
                                            "1 rank 1, predicted", "1.0 compute"));
}

TEST(ChromeTraceTest, ActivitiesLieWithinTheirCommandAndThoseThatOverlapGetMoreTracks) {
  Timeline timeline = {{Span(1, 0.0006, 9.9996)}};
  timeline.spans[0].activities = {
      {.name = "kernel_a", .stream = 7, .start_us = 0.0006, .end_us = 5},
      {.kind = ActivityKind::kCopy, .stream = 8, .start_us = 4, .end_us = 8, .num_bytes = 32},
      {.name = "kernel_b", .stream = 7, .start_us = 5, .end_us = 9.9996}};
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::string trace, ToChromeTrace(TimelinePlan(), timeline, "measured"));
  const std::vector<nlohmann::json> slices = EventsOf(trace, "X");
  ASSERT_EQ(slices.size(), 4u);
  const auto end = [](const nlohmann::json& slice) {
    return std::lround(1e3 * (slice["ts"].get<double>() + slice["dur"].get<double>()));
  };
  EXPECT_EQ(slices[1]["name"], "kernel_a");
  EXPECT_EQ(slices[1]["tid"], slices[0]["tid"]);
  EXPECT_EQ(slices[1]["ts"], slices[0]["ts"]);
  EXPECT_EQ(slices[2]["name"], "copy");
  EXPECT_NE(slices[2]["tid"], slices[0]["tid"]);
  EXPECT_EQ(slices[2]["args"], nlohmann::json::parse(R"({"stream": 8, "bytes": 32})"));
  EXPECT_EQ(slices[3]["tid"], slices[0]["tid"]);
  EXPECT_EQ(end(slices[3]), end(slices[0]));
  EXPECT_THAT(trace, HasSubstr("\"all_gather 2\""));
}

TEST(ChromeTraceTest, TellsTheFurthestMomentsApart) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::string trace,
                               ToChromeTrace(TimelinePlan(), {{Span(1, -0x1p52, 0x1p52)}}, ""));
  EXPECT_THAT(trace, HasSubstr("\"dur\":9.007199254740992e+15"));
  EXPECT_THAT(ToChromeTrace(TimelinePlan(), {{Span(1, -0x1p53, 0)}}, ""),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("none beyond")));
}

TEST(ChromeTraceTest, RefusesSpansThatAreNotOfThePlan) {
  const Plan plan = TimelinePlan();
  struct Case {
    CommandSpan span;
    const char* message;
  };
  const std::vector<Case> cases = {
      {Span(10, 0, 1), "is of command 10 of 10 in schedule body"},
      {Span(-1, 0, 1), "is of command -1 of 10"},
      {{.schedule = 2, .command = CommandId(0)}, "is of schedule 2 of 2"},
      {{.schedule = -1, .command = CommandId(0)}, "is of schedule -1 of 2"},
      {{.rank = 2, .command = CommandId(0)}, "is of rank 2 of 2"},
      {{.rank = -1, .command = CommandId(0)}, "is of rank -1 of 2"},
      {Span(1, 2, 1), "goes from 2 to 1 microseconds"},
      {Span(1, 0, std::numeric_limits<double>::quiet_NaN()), "goes from 0 to nan microseconds"},
      {Span(1, -std::numeric_limits<double>::infinity(), 0), "goes from -inf to 0 microseconds"},
      {{.command = CommandId(1), .activities = {{.start_us = 1, .end_us = 0}}}, "goes from 1 to 0 microseconds"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(ToChromeTrace(plan, {{Span(1, 0, 1), c.span}}, "measured"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         ::testing::AllOf(StartsWith("span 1 of the timeline "), HasSubstr(c.message),
                                          HasSubstr("give a timeline of this plan"))));
  }
}

}  // namespace
}  // namespace reprise
