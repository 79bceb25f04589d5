#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/core/plan.h"
#include "tests/core/sample_plan.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using Json = nlohmann::ordered_json;
using testing::SampleModel;
using testing::SamplePlan;

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  EXPECT_EQ(lines.back(), "") << "the text ends with a newline";
  lines.pop_back();
  return lines;
}

// The lines from the one that starts with `title` up to the next empty line.
std::vector<std::string> Section(const std::string& text, const std::string& title) {
  std::vector<std::string> section;
  for (const std::string& line : Lines(text)) {
    if (section.empty() ? line.rfind(title, 0) == 0 : !line.empty()) {
      section.push_back(line);
    } else if (!section.empty()) {
      break;
    }
  }
  return section;
}

TEST(PlanTextTest, ShowsEveryResolvedOption) {
  EXPECT_THAT(ToText(SamplePlan()),
              HasSubstr("\noptions: prefetch_depth=1 weight_slots=2 gradient_slots=2 microbatches_per_graph=2 "
                        "residency=keep reduce=every_microbatch tail=in_graph transports=nccl sum=rank_order "
                        "reduce_dtype=bf16 master_dtype=f32 "
                        "optimizer_states=2\n"));
}

TEST(PlanTextTest, ShowsUnitsMemoryAndBuffers) {
  const std::string text = ToText(SamplePlan());
  EXPECT_THAT(
      Section(text, "units"),
      ElementsAre(
          "units (ranges in elements)",
          "  u0    bf16, reduce_dtype f32, gather nccl, exchange nccl, sum rank_order, shard 64 of 128: w [0, 32)"));
  EXPECT_THAT(Section(text, "memory"),
              ElementsAre("memory per rank           bytes      lower bound",  //
                          "  weights                     100",                 //
                          "  masters                     200",                 //
                          "  session                     400",                 //
                          "  gradients                   800",                 //
                          "  host_visible               1600",                 //
                          "  communicating              3200             1024",
                          "  local                      6400             2048",
                          "  persistent                15900",  //
                          "  transient                  9600             3072"));
  EXPECT_THAT(Section(text, "buffers"),
              ElementsAre("buffers (ranges in bytes of their storage)", "  weights.u0   weights           [0, 128)",
                          "  gathered.u0  communicating   [512, 768)", "  x            local             [0,  16)",
                          "  x~2          local           [256, 260)"));
}

TEST(PlanTextTest, ShowsOneAlignedLinePerCommand) {
  EXPECT_EQ(absl::StrJoin(Section(ToText(SamplePlan()), "schedule body"), "\n"),
            // clang-format off
            R"(schedule body: 2 microbatches, 11 commands, also first
  start: resident u0 slot 1 in gathered.u0
  #0   compute         begin
  #1   compute         next_microbatch count 2
  #2   compute         stage_inputs microbatch 1 slots 4
  #3   all_gather      all_gather u0 slot 1 nccl                                        waits #0 fork            reads shard weights.u0; assigns gathered.u0
  #4   compute         forward call microbatch 1 recompute                              waits #3 data            reads parameter gathered.u0 [0, 64), input x; assigns output x~2
  #5   compute         backward call microbatch 1
  #6   compute         pack_gradients u0 microbatch 1
  #7   reduce_scatter  reduce_scatter u0 microbatch -1 slot 1 symmetric sum rank_order  waits #0 fork, #3 order
  #8   reduce_scatter  accumulate u0 microbatch 1 sum rank_order always_assign
  #9   compute         record_loss microbatch 1                                                                  updates output x~2
  #10  compute         end                                                              waits #3 join, #8 join
  end: outstanding u0 slot 2 in gathered.u0, unsharded gradients hold a sum)");
  // clang-format on
}

TEST(PlanTextTest, SaysWhichScheduleServesTwice) {
  EXPECT_THAT(ToText(SamplePlan()), HasSubstr("schedule body: 2 microbatches, 11 commands, also first\n"));
  Plan plan = SamplePlan();
  plan.first = 1;
  EXPECT_THAT(ToText(plan), HasSubstr("schedule body: 2 microbatches, 11 commands\n"));
}

TEST(PlanTextTest, IsTheSameEveryTime) { EXPECT_EQ(ToText(SamplePlan()), ToText(SamplePlan())); }

TEST(PlanTextTest, ShowsPlansWhoseIdsNameNothing) {
  Plan plan = SamplePlan();
  plan.schedules[0].commands[3].uses[0].buffer = BufferId(99);
  plan.schedules[0].start.residents[0].unit = UnitId(9);
  EXPECT_THAT(ToText(plan), HasSubstr("reads shard buffer#99 [0, 128)"));
  EXPECT_THAT(ToText(plan), HasSubstr("start: resident unit#9 slot 1"));
}

Json Parse(const Plan& plan, int microbatches) {
  const absl::StatusOr<std::string> text = ToJson(plan, microbatches);
  EXPECT_TRUE(text.ok()) << text.status();
  return Json::parse(text.value_or("{}"), nullptr, /*allow_exceptions=*/false);
}

TEST(PlanJsonTest, SummarizesTheStep) {
  const Plan plan = SamplePlan();
  EXPECT_EQ(Parse(plan, 4)["summary"], (Json{{"world_size", 2},
                                             {"microbatches", 4},
                                             {"all_gathers", 2},
                                             {"reduce_scatters", 2},
                                             {"commands", 11 + 11 + 6},
                                             {"waits", 2 * 6 + 1},
                                             {"persistent_bytes", 15900},
                                             {"transient_bytes", 9600},
                                             {"transient_lower_bound_bytes", 3072},
                                             {"fingerprint", plan.fingerprint.ToString()}}));
}

TEST(PlanJsonTest, HoldsOptionsBuffersAndCommands) {
  const Json json = Parse(SamplePlan(), 2);
  EXPECT_EQ(json["options"]["weight_slots"], 2);
  EXPECT_EQ(json["options"]["residency"], "keep");
  EXPECT_EQ(json["options"].size(), PlanOptionTexts().size());
  EXPECT_EQ(json["memory"][5], (Json{{"storage", "communicating"}, {"num_bytes", 3200}, {"lower_bound", 1024}}));
  EXPECT_EQ(json["buffers"][1],
            (Json{{"name", "gathered.u0"}, {"storage", "communicating"}, {"offset", 512}, {"num_bytes", 256}}));
  EXPECT_EQ(json["units"][0]["groups"][0]["parameters"][0],
            (Json{{"parameter", "w"}, {"first_element", 0}, {"num_elements", 32}}));
  ASSERT_EQ(json["schedules"].size(), 2u);
  const Json& body = json["schedules"][0];
  EXPECT_EQ(body["name"], "body");
  EXPECT_EQ(body["start"]["residents"][0], (Json{{"unit", "u0"}, {"slot", 1}, {"buffer", 1}}));
  EXPECT_EQ(body["end"]["outstanding"][0], (Json{{"unit", "u0"}, {"slot", 2}, {"buffer", 1}}));
  EXPECT_EQ(body["end"]["gradients"], true);
  ASSERT_EQ(body["commands"].size(), 11u);
  const auto use = [](const char* access, const char* role, int id, int buffer, int bytes) {
    return Json{{"access", access}, {"role", role}, {"id", id},
                {"buffer", buffer}, {"offset", 0},  {"num_bytes", bytes}};
  };
  EXPECT_EQ(body["commands"][4],
            (Json{{"id", 4},
                  {"kind", "forward"},
                  {"call", "call"},
                  {"microbatch", 1},
                  {"recompute", true},
                  {"lane", "compute"},
                  {"waits", Json::array({Json{{"command", 3}, {"reason", "data"}}})},
                  {"uses", Json::array({use("read", "parameter", 0, 1, 64), use("read", "input", 0, 2, 16),
                                        use("assign", "output", 1, 3, 4)})}}));
}

TEST(PlanJsonTest, WritesOneLinePerCommand) {
  const absl::StatusOr<std::string> text = ToJson(SamplePlan(), 2);
  ASSERT_TRUE(text.ok());
  int commands = 0;
  for (const std::string& line : Lines(*text)) {
    if (line.find("\"kind\":") == std::string::npos) continue;
    ++commands;
    EXPECT_THAT(line, MatchesRegex(" *\\{\"id\":.*\\},?"));
  }
  EXPECT_EQ(commands, 11 + 6);
}

TEST(PlanJsonTest, RefusesMicrobatchesThatDoNotFillGraphs) {
  EXPECT_EQ(ToJson(SamplePlan(), 3).status(), Summarize(SamplePlan(), 3).status());
}

TEST(PlanJsonTest, AnyBytesOfANameGiveValidJson) {
  Plan plan = SamplePlan();
  plan.model = SampleModel("\"\\");
  plan.buffers[0].name = "\xc0\"\n";
  EXPECT_FALSE(Parse(plan, 2).is_discarded());
}

// ---- DOT ----

struct Edge {
  std::string from, to, attributes;
};

// Reads the statements that ToDot writes, one a line, and fails on any other.
struct Dot {
  explicit Dot(const std::string& text) {
    const std::regex vertex(R"rx(\s*(s\d+_\d+) \[label="((?:[^"\\]|\\.)*)", group="\w+"\];)rx");
    const std::regex edges(R"rx(\s*(s\d+_\d+(?: -> s\d+_\d+)*) \[(.*)\];)rx");
    const std::regex other(
        R"rx(//.*|digraph plan \{|\s*subgraph cluster_\w+ \{|\s*\}|\s*\w+="?[\w ]+"?;|  node \[.*\];)rx");
    int depth = 0;
    for (const std::string& line : Lines(text)) {
      std::smatch match;
      if (std::regex_match(line, match, vertex)) {
        EXPECT_TRUE(labels.emplace(match[1], match[2]).second) << "declared twice: " << line;
      } else if (std::regex_match(line, match, edges)) {
        const std::vector<std::string> ends = absl::StrSplit(match[1].str(), " -> ");
        for (size_t i = 1; i < ends.size(); ++i) {
          (match[2].str().find("weight") == std::string::npos ? waits : order)
              .push_back({ends[i - 1], ends[i], match[2]});
        }
      } else {
        EXPECT_TRUE(std::regex_match(line, other)) << line;
        if (line.rfind("//", 0) != 0) depth += line.back() == '{' ? 1 : line.back() == '}' ? -1 : 0;
        EXPECT_GE(depth, 0);
      }
    }
    EXPECT_EQ(depth, 0);
  }
  std::map<std::string, std::string> labels;
  std::vector<Edge> waits, order;
};

TEST(PlanDotTest, HasACommandPerVertexAndAWaitPerEdge) {
  const Dot dot(ToDot(SamplePlan()));
  EXPECT_EQ(dot.labels.size(), 11u + 6u);
  EXPECT_EQ(dot.labels.at("s0_3"), "#3 all_gather u0 slot 1 nccl");
  EXPECT_EQ(dot.waits.size(), 6u + 1u);
  // Chains: in body 8 compute, 1 gather and 2 reduction commands; in step 5 and 1.
  EXPECT_EQ(dot.order.size(), 7u + 0u + 1u + 4u + 0u);
  for (const auto* edges : {&dot.waits, &dot.order}) {
    for (const Edge& edge : *edges) EXPECT_TRUE(dot.labels.count(edge.from) && dot.labels.count(edge.to));
  }
}

TEST(PlanDotTest, ColoursWaitsByReason) {
  const Dot dot(ToDot(SamplePlan()));
  std::map<std::string, std::set<std::string>> colours;
  for (const Edge& edge : dot.waits) {
    std::smatch match;
    const std::regex attributes(R"rx(color=(\w+), tooltip="(\w+)")rx");
    ASSERT_TRUE(std::regex_match(edge.attributes, match, attributes)) << edge.attributes;
    colours[match[2]].insert(match[1]);
  }
  EXPECT_THAT(colours, ElementsAre(::testing::Pair("data", ElementsAre("firebrick")),
                                   ::testing::Pair("fork", ElementsAre("steelblue")),
                                   ::testing::Pair("join", ElementsAre("seagreen")),
                                   ::testing::Pair("order", ElementsAre("darkorange"))));
}

TEST(PlanDotTest, QuotesNames) {
  Plan plan = SamplePlan();
  plan.model = SampleModel("a\"];\\n}");
  const Dot dot(ToDot(plan));
  EXPECT_EQ(dot.labels.size(), 17u);
  EXPECT_EQ(dot.labels.at("s1_2"), R"(#2 update_parameters a\"];\\n})");
}

}  // namespace
}  // namespace reprise
