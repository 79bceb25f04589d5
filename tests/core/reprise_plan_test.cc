// The tool as its users run it: its flags, its output and its exit codes.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/core/cost_model.h"
#include "reprise/core/overlap.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "reprise/core/timeline.h"
#include "tests/testing/run_executable.h"

namespace reprise {
namespace {

using ::testing::EndsWith;
using testing::FinishedRun;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

FinishedRun Tool(const std::string& flags) { return testing::RunExecutable(REPRISE_PLAN, flags + " 2>/dev/null"); }
// What it prints on the standard error.
FinishedRun ToolErrors(const std::string& flags) {
  return testing::RunExecutable(REPRISE_PLAN, flags + " 2>&1 >/dev/null");
}

constexpr char kSmall[] = "--stack=2 --param_shape=64x64 --tokens=8 ";

Plan SmallPlan(const PlanOptions& options, int world_size = 2) {
  const absl::StatusOr<Model> model = StackModel(2, {64, 64}, DType::kBFloat16, 8);
  EXPECT_TRUE(model.ok()) << model.status();
  const absl::StatusOr<Plan> plan = PlanTraining(*model, world_size, options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

// What it predicts, without what it says about that.
nlohmann::json PredictedTrace(const std::string& flags) {
  nlohmann::json trace = nlohmann::json::parse(Tool(flags + "--format=timeline").output, nullptr, false);
  if (trace.is_object()) trace.erase("otherData");
  return trace;
}

TEST(ReprisePlanTest, PrintsTheFormAskedFor) {
  const Plan plan = SmallPlan({});
  EXPECT_EQ(Tool(absl::StrCat(kSmall, "--format=text")).output, ToText(plan));
  EXPECT_EQ(Tool(absl::StrCat(kSmall, "--format=dot")).output, ToDot(plan));
  EXPECT_EQ(Tool(absl::StrCat(kSmall, "--format=json --microbatches=3")).output, *ToJson(plan, 3));
  EXPECT_EQ(Tool(kSmall).output, Tool(absl::StrCat(kSmall, "--format=summary")).output);
}

TEST(ReprisePlanTest, EveryFlagReachesThePlan) {
  struct Case {
    const char* flags;
    PlanOptions options;
    int world_size = 2;
  };
  const std::vector<Case> cases = {
      {"--ranks=3", {}, 3},
      {"--prefetch_depth=0", {.prefetch_depth = 0}},
      {"--weight_slots=1", {.weight_slots = 1}},
      {"--gradient_slots=3", {.gradient_slots = 3}},
      {"--microbatches_per_graph=2 --microbatches=4", {.microbatches_per_graph = 2}},
      {"--residency=keep", {.residency = Residency::kKeep}},
      {"--residency=off", {.residency = Residency::kOff}},
      {"--reduce=every_microbatch", {.reduce = Reduce::kEveryMicrobatch}},
      {"--reduce=once_per_step", {.reduce = Reduce::kOncePerStep}},
      {"--tail=in_graph", {.tail = Tail::kInGraph}},
      {"--tail=carried", {.tail = Tail::kCarried}},
      {"--transports=auto", {}},
      {"--transports=nccl", {.transports = EveryUnit(Transport::kNccl)}},
      {"--transports=symmetric", {.transports = EveryUnit(Transport::kSymmetric)}},
      {"--transports=copy_engine", {.transports = EveryUnit(Transport::kCopyEngine)}},
      {"--transports=symmetric,999:copy_engine",
       {.transports = {{0, Transport::kSymmetric}, {999, Transport::kCopyEngine}}}},
      {"--reduce_dtype=f32", {.reduce_dtype = DType::kFloat32}},
      {"--master_dtype=bf16", {.master_dtype = DType::kBFloat16}},
      {"--noverify", {}},
      {"--verify=true", {}},
  };
  for (const Case& c : cases) {
    const FinishedRun run = Tool(absl::StrCat(kSmall, c.flags, " --format=text"));
    EXPECT_EQ(run.exit_code, 0) << c.flags;
    EXPECT_EQ(run.output, ToText(SmallPlan(c.options, c.world_size))) << c.flags;
  }
}

TEST(ReprisePlanTest, ForwardPlansHaveNoBackward) {
  const FinishedRun run = Tool(absl::StrCat(kSmall, "--forward --format=text"));
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.output, ToText(*PlanForward(*StackModel(2, {64, 64}, DType::kBFloat16, 8), 2, {})));
}

TEST(ReprisePlanTest, ReadsAModelFile) {
  const Model model = *StackModel(3, {32, 32}, DType::kFloat32, 4);
  const std::string path = absl::StrCat(::testing::TempDir(), "/reprise_plan_test_model.json");
  std::ofstream(path) << model.ToJson();
  EXPECT_EQ(Tool(absl::StrCat("--model=", path, " --format=text")).output, ToText(*PlanTraining(model, 2, {})));
  std::remove(path.c_str());
}

// The founding figures: four equal units, two weight slots, two microbatches.
TEST(ReprisePlanTest, JsonSummaryHasTheStepsCounts) {
  const FinishedRun run = Tool("--stack=4 --microbatches=2 --format=json");
  ASSERT_EQ(run.exit_code, 0);
  const nlohmann::json summary = nlohmann::json::parse(run.output)["summary"];
  EXPECT_EQ(summary["all_gathers"], 10);
  EXPECT_EQ(summary["reduce_scatters"], 8);
  EXPECT_EQ(summary["world_size"], 2);
  EXPECT_EQ(summary["microbatches"], 2);
  EXPECT_EQ(summary["fingerprint"].get<std::string>().size(), 32u);
  for (const char* key : {"commands", "waits", "persistent_bytes", "transient_bytes", "transient_lower_bound_bytes"}) {
    EXPECT_GT(summary[key].get<int64_t>(), 0) << key;
  }
}

TEST(ReprisePlanTest, SummaryShowsBytesInAUnitThatFits) {
  const std::string output = Tool(absl::StrCat(kSmall, "--ranks=1")).output;
  EXPECT_THAT(output, HasSubstr("\nparameter bytes                            16384        16.000 KiB\n"));
  EXPECT_THAT(Tool("--stack=1 --param_shape=1000x1000").output,
              HasSubstr("\nparameter bytes                          2000000         1.907 MiB\n"));
  EXPECT_THAT(Tool("--stack=1 --param_shape=3x5").output,
              HasSubstr("\nparameter bytes                               30\n"));
  EXPECT_THAT(output, ::testing::Not(HasSubstr(" 0.0")));
}

TEST(ReprisePlanTest, SummaryShowsNumbersAndGiB) {
  const std::string output = Tool("--stack=4 --microbatches=2").output;
  for (const char* line :
       {"\nunits                                          4\n", "\n  by transport nccl                            4\n",
        "\nparameters                                     4\n", "\nparameter elements                    1073741824\n",
        "\nparameter bytes                       2147483648         2.000 GiB\n",
        "\nall_gathers                                   10\n", "\nreduce_scatters                                8\n",
        "\nweights bytes                         1073741824         1.000 GiB\n"}) {
    EXPECT_THAT("\n" + output, HasSubstr(line));
  }
  EXPECT_THAT(output, HasSubstr("\ntransient / lower bound"));
  EXPECT_THAT(output, HasSubstr("\nfingerprint "));
}

TEST(ReprisePlanTest, PredictsTheStepAsATimelineOrItsOverlap) {
  const Plan plan = SmallPlan({.microbatches_per_graph = 2, .tail = Tail::kCarried});
  // Six microbatches: first, two bodies, finish, step.
  const Timeline timeline =
      *PredictTimeline(plan, {plan.first, plan.body, plan.body, plan.finish, plan.step}, CostModel());
  const std::string flags = absl::StrCat(kSmall, "--microbatches_per_graph=2 --tail=carried --microbatches=6 ");
  EXPECT_EQ(PredictedTrace(flags), nlohmann::json::parse(*ToChromeTrace(plan, timeline, "predicted")));
  const std::string overlap = Tool(absl::StrCat(flags, "--format=overlap")).output;
  EXPECT_THAT(overlap, StartsWith("prediction: "));
  EXPECT_THAT(overlap, EndsWith("\n\n" + ToText(plan, *AnalyzeOverlap(plan, timeline))));
}

TEST(ReprisePlanTest, PredictsForwardPlans) {
  const Plan plan = *PlanForward(*StackModel(2, {64, 64}, DType::kBFloat16, 8), 2, {});
  const Timeline timeline = *PredictTimeline(plan, {plan.first, plan.body}, CostModel());
  EXPECT_EQ(PredictedTrace(absl::StrCat(kSmall, "--forward --microbatches=2 ")),
            nlohmann::json::parse(*ToChromeTrace(plan, timeline, "predicted")));
}

TEST(ReprisePlanTest, ReadsACostFile) {
  const Plan plan = SmallPlan({});
  const std::string path = absl::StrCat(::testing::TempDir(), "/reprise_plan_test_costs.json");
  std::ofstream(path) << R"({"version": 1, "costs": {"flops": 1e9, "collective_us": 7}})";
  const Timeline timeline = *PredictTimeline(plan, {plan.first, plan.step}, {.flops = 1e9, .collective_us = 7});
  EXPECT_EQ(PredictedTrace(absl::StrCat(kSmall, "--costs=", path, " ")),
            nlohmann::json::parse(*ToChromeTrace(plan, timeline, "predicted")));
  std::remove(path.c_str());
}

// The rates are those used, and who cannot know better is told that they are guesses.
TEST(ReprisePlanTest, ACostFilesTransportsAreThePlansUnlessTheFlagNamesSome) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/reprise_plan_test_transports.json");
  std::ofstream(path) << R"({"version": 1, "transports": "symmetric,999:copy_engine"})";
  const std::string flags = absl::StrCat(kSmall, "--format=text --costs=", path, " ");
  const std::vector<TransportChoice> measured = {{0, Transport::kSymmetric}, {999, Transport::kCopyEngine}};
  EXPECT_EQ(Tool(flags).output, ToText(SmallPlan({.transports = measured})));
  EXPECT_EQ(Tool(absl::StrCat(flags, "--transports=auto")).output, ToText(SmallPlan({.transports = measured})));
  EXPECT_EQ(Tool(absl::StrCat(flags, "--transports=nccl")).output,
            ToText(SmallPlan({.transports = EveryUnit(Transport::kNccl)})));
  const std::string summary = absl::StrCat(kSmall, "--costs=", path, " ");
  EXPECT_THAT(Tool(absl::StrCat(summary, "--transports=nccl")).output, Not(HasSubstr("no effect")));
  EXPECT_THAT(Tool(summary).output, Not(HasSubstr("no effect")));
}

TEST(ReprisePlanTest, EveryPredictionSaysWhatItIs) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/reprise_plan_test_rates.json");
  struct Case {
    const char* costs;  // of the file; null: none
    int ranks;
    const char* rates;
    const char* guess;  // empty: none
  };
  const char* const builtin =
      "709 TFLOP/s, memory 4100 GB/s, gathers 172 GB/s, reductions 203 GB/s; 12 us for each "
      "collective, 3 us for each other command";
  const std::vector<Case> cases = {
      {nullptr, 1, builtin, ""},
      {nullptr, 2, builtin, ""},
      {nullptr, 3, builtin, "for 3 ranks the bandwidths are guesses: they were measured with 2; give --costs=FILE"},
      {nullptr, 64, builtin, "for 64 ranks the bandwidths are guesses: they were measured with 2"},
      {R"({"flops": 5e12})", 64, "5 TFLOP/s, memory 4100 GB/s, gathers 172 GB/s", "measured with 2"},
      {R"({"gather_bandwidth": 4e10})", 64, "gathers 40 GB/s, reductions 203 GB/s", "measured with 2"},
      {R"({"gather_bandwidth": 4e10, "reduce_bandwidth": 3e10})", 64, "gathers 40 GB/s, reductions 30 GB/s", ""},
      {R"({"gather_bandwidth": 4e10, "reduce_bandwidth": 3e10, "ranks": 8})", 64, "gathers 40 GB/s", "measured with 8"},
      {R"({"gather_bandwidth": 4e10, "ranks": 64})", 64, "gathers 40 GB/s, reductions 203 GB/s", ""},
  };
  for (const Case& c : cases) {
    std::string flags = absl::StrCat(kSmall, "--ranks=", c.ranks);
    if (c.costs != nullptr) {
      std::ofstream(path) << R"({"version": 1, "costs": )" << c.costs << "}";
      absl::StrAppend(&flags, " --costs=", path);
    }
    const FinishedRun trace = Tool(flags + " --format=timeline"), overlap = Tool(flags + " --format=overlap");
    ASSERT_EQ(trace.exit_code, 0) << flags;
    const nlohmann::json notes = nlohmann::json::parse(trace.output)["otherData"];
    EXPECT_THAT(notes["prediction"].get<std::string>(), HasSubstr("nothing was run"));
    EXPECT_THAT(notes["rates"].get<std::string>(), HasSubstr(c.rates)) << flags;
    EXPECT_THAT(notes["source"].get<std::string>(), HasSubstr(c.costs == nullptr ? "two H200" : path));
    EXPECT_EQ(notes.contains("guess"), c.guess[0] != '\0') << flags;
    EXPECT_THAT(notes.value("guess", ""), HasSubstr(c.guess));
    for (const auto& [key, note] : notes.items()) {
      EXPECT_THAT(overlap.output, HasSubstr(absl::StrCat(key, ": ", note.get<std::string>(), "\n")));
    }
    EXPECT_EQ(overlap.output.find("guess") == std::string::npos, c.guess[0] == '\0') << flags;
  }
  std::remove(path.c_str());
}

TEST(ReprisePlanTest, SaysWhetherThePlanFitsInADevice) {
  // Of the summary above: all but what the host sees.
  constexpr int64_t kNeeded = int64_t{1073741824} + 2147483648 + 6442484736 + 2415919104;
  struct Case {
    const char* memory;
    int64_t bytes;
  };
  for (const Case& c :
       {Case{"141GB", 141000000000}, Case{"80GiB", int64_t{80} << 30}, Case{"'12 gib'", int64_t{12} << 30},
        Case{"1.5TiB", int64_t{3} << 39}, Case{"12079629312B", kNeeded}, Case{"12079629311B", kNeeded - 1},
        Case{"512KiB", 512 << 10}, Case{"512kb", 512000}, Case{"7MB", 7000000}, Case{"7MiB", 7 << 20},
        Case{"2TB", 2000000000000}}) {
    const FinishedRun run = Tool(absl::StrCat("--stack=4 --device_memory=", c.memory));
    const bool fits = kNeeded <= c.bytes;
    EXPECT_EQ(run.exit_code, fits ? 0 : 3) << c.memory;
    for (const std::string& line :
         {absl::StrFormat("\ngiven bytes%37d", c.bytes), absl::StrFormat("\nneeded bytes%36d", kNeeded),
          fits ? absl::StrFormat("\nfits: left bytes%32d", c.bytes - kNeeded)
               : absl::StrFormat("\nDOES NOT FIT: lacking bytes%21d", kNeeded - c.bytes)}) {
      EXPECT_THAT(run.output, HasSubstr(line)) << c.memory;
    }
    EXPECT_EQ(run.output.find(fits ? "DOES NOT FIT" : "fits: ") == std::string::npos, true) << c.memory;
    EXPECT_THAT(run.output,
                HasSubstr("\nlargest buffers\nmaster.u0                              536870912  masters\n"));
  }
}

// Whoever leaves --tokens out must not take the answer for one about a training.
TEST(ReprisePlanTest, SaysThatActivationsAreNotCounted) {
  const std::string note = "ACTIVATIONS ARE NOT COUNTED: --tokens is 0; give the rows of a microbatch\n";
  const std::string predicted = "activations: not counted, so that compute takes too little time: --tokens is 0; ";
  for (const char* none : {"", "--tokens=0 "}) {
    const std::string flags = absl::StrCat("--stack=2 --param_shape=64x64 ", none);
    EXPECT_THAT(Tool(flags).output, HasSubstr("\n" + note + "\noptions in force\n"));
    for (const char* memory : {"1KB", "1GB"}) {
      const std::string output = Tool(absl::StrCat(flags, "--device_memory=", memory)).output;
      const size_t verdict = output.find("\nneeded bytes");
      ASSERT_NE(verdict, std::string::npos);
      EXPECT_THAT(output.substr(verdict), HasSubstr("\n" + note + "\nlargest buffers\n")) << memory;
    }
    EXPECT_THAT(Tool(flags + "--format=overlap").output, HasSubstr(predicted));
    EXPECT_THAT(Tool(flags + "--format=timeline").output, HasSubstr("--tokens is 0"));
  }
  for (const char* counted : {kSmall, "--model=tests/core/data/two_units.json "}) {
    for (const char* format : {"", "--device_memory=1GB", "--format=overlap", "--format=timeline"}) {
      const FinishedRun run = Tool(absl::StrCat(counted, format));
      EXPECT_EQ(run.exit_code, 0) << counted << format;
      EXPECT_EQ(run.output.find("--tokens is 0"), std::string::npos) << counted << format;
    }
  }
}

TEST(ReprisePlanTest, SummaryShowsTheOptionsInForceAndThoseWithoutEffect) {
  struct Case {
    const char* flags;
    std::vector<std::string> without_effect;
  };
  const std::vector<Case> cases = {
      {"", {}},
      {"--weight_slots=3 --prefetch_depth=2 --tail=carried --reduce_dtype=f32 --residency=off --master_dtype=bf16", {}},
      {"--prefetch_depth=4 --weight_slots=2",
       {"prefetch_depth=4: no more effect than 1, because 2 weight slots hold no more copies"}},
      {"--prefetch_depth=4 --weight_slots=3",
       {"prefetch_depth=4: no more effect than 2, because 3 weight slots hold no more copies"}},
      {"--prefetch_depth=2147483647 --weight_slots=2147483647 --gradient_slots=2147483647",
       {"prefetch_depth=2147483647: no more effect than 3, because 4 weight slots hold no more copies",
        "weight_slots=2147483647: no more effect than 4, because no more copies are gathered at a time",
        "gradient_slots=2147483647: no more effect than 4, because no more gradients travel at a time"}},
      {"--forward --reduce=once_per_step --reduce_dtype=f32 --gradient_slots=3",
       {"gradient_slots=3: no more effect than 1, because a forward plan has no gradients",
        "reduce=once_per_step: no effect: a forward plan is the same without it",
        "reduce_dtype=f32: no effect: a forward plan is the same without it"}},
      {"--weight_slots=1 --residency=off", {}},
  };
  for (const Case& c : cases) {
    const std::string output = Tool(absl::StrCat("--stack=4 --param_shape=64x64 --tokens=8 ", c.flags)).output;
    EXPECT_THAT(output, HasSubstr("\noptions in force\nprefetch_depth=")) << c.flags;
    std::string lines;
    for (const std::string& line : c.without_effect) absl::StrAppend(&lines, line, "\n");
    if (lines.empty()) {
      EXPECT_EQ(output.find("without effect"), std::string::npos) << output;
    } else {
      EXPECT_THAT(output, EndsWith("\noptions without effect\n" + lines)) << c.flags;
    }
  }
  const std::string model = Tool("--model=tests/core/data/two_units.json --tokens=7 --dtype=f32").output;
  EXPECT_THAT(model, HasSubstr("dtype=f32: no effect: it is for --stack, and --model is given\n"
                               "tokens=7: no effect: it is for --stack, and --model is given\n"));
}

TEST(ReprisePlanTest, HelpShowsExamplesAndFlags) {
  const std::string help = Tool("--help").output;
  for (const char* part :
       {"reprise_plan --stack=4", "--model", "--weight_slots", "every_microbatch, once_per_step", "--format",
        "copy_engine", "--costs", "overlap",
        "0 done; 1 failed; 2 refused, because of a flag, a file or a size; 3 the plan does not fit in "
        "--device_memory"}) {
    EXPECT_THAT(help, HasSubstr(part));
  }
}

TEST(ReprisePlanTest, RefusesBadFlagsInOneLineWithARemedy) {
  struct Case {
    const char* flags;
    const char* what;
    const char* remedy;
  };
  const std::vector<Case> cases = {
      {"", "neither of --model and --stack", "give one"},
      {"--stack=2 --model=x.json", "both of --model and --stack", "give one"},
      {"--model=/nonexistent/x.json", "/nonexistent/x.json (No such file", "give the path"},
      {"--model=/", "(Is a directory", "give the path"},
      {"--stack=0", "stack of 0 units", "at least 1"},
      {"--stack=-1", "stack of -1 units", "at least 1"},
      {"--stack=two", "--stack=two", "--help"},
      {"--stack=99999999999", "--stack=99999999999", "--help"},
      {"--model=README.md", "--model=README.md: ", ""},
      {"--model=/dev/zero", "/dev/zero (not a regular file)", "give the path"},
      {"--stack=2 --param_shape=64", "--param_shape is \"64\"", "such as 16384x16384"},
      {"--stack=2 --param_shape=6x6x6", "--param_shape is \"6x6x6\"", "such as 16384x16384"},
      {"--stack=2 --param_shape=4611686018427387904x4", "--param_shape=4611686018427387904x4", ""},
      {"--stack=2 --param_shape=64x", "--param_shape is \"64x\"", "such as 16384x16384"},
      {"--stack=2 --param_shape=axb", "--param_shape is \"axb\"", "such as 16384x16384"},
      {"--stack=2 --param_shape=-4x4", "--param_shape is \"-4x4\"", "such as 16384x16384"},
      {"--stack=2 --dtype=f16", "--dtype is \"f16\"", "give one of: bf16, f32"},
      {"--stack=2 --tokens=-1", "--tokens is -1", "give 0 or more"},
      {"--stack=2 --ranks=0", "0", ";"},
      {"--stack=2 --microbatches=0", "0 microbatches", "positive multiple of 1"},
      {"--stack=2 --microbatches=3 --microbatches_per_graph=2", "3 microbatches", "positive multiple of 2"},
      {"--stack=2 --microbatches_per_graph=0", "microbatches_per_graph is 0", "at least 1"},
      {"--stack=2 --weight_slots=0", "weight_slots is 0", "at least 1"},
      {"--stack=2 --gradient_slots=-3", "gradient_slots is -3", "at least 1"},
      {"--stack=2 --prefetch_depth=-1", "prefetch_depth is -1", "at least 0"},
      {"--stack=2 --residency=maybe", "--residency is \"maybe\"", "give one of: keep, off"},
      {"--stack=2 --reduce=never", "--reduce is \"never\"", "give one of: every_microbatch, once_per_step"},
      {"--stack=2 --tail=none", "--tail is \"none\"", "give one of: in_graph, carried"},
      {"--stack=2 --transports=ib",
       "--transports is no list of transports: \"ib\" in \"ib\" is no transport with bytes",
       "give auto, or one of nccl, symmetric, copy_engine"},
      {"--stack=2 --reduce_dtype=i32", "--reduce_dtype is \"i32\"", "give one of: bf16, f32"},
      {"--stack=2 --master_dtype=u8", "--master_dtype is \"u8\"", "give one of: bf16, f32"},
      {"--stack=2 --format=xml", "--format is \"xml\"", "give one of: summary, text, json, dot, timeline, overlap"},
      {"--stack=2 --format=overlap --costs=/nonexistent/x.json", "/nonexistent/x.json (No such file",
       "give the path of a cost file"},
      {"--stack=2 --format=timeline --costs=/dev/zero", "/dev/zero (not a regular file)", "give the path"},
      {"--stack=2 --format=timeline --costs=README.md", "--costs=README.md: JSON text: no valid JSON", ""},
      {"--stack=2 --format=overlap --microbatches=2000000000", "a step of 2000000000 microbatches has",
       "give fewer microbatches"},
      {"--stack=2 --verify=maybe", "--verify=maybe", "--help"},
      {"--stack=2 --device_memory=80 --format=text", "--device_memory is for --format=summary", "leave it out"},
      {"--stack=2 --device_memory=80",
       "--device_memory: \"80\" is no amount of memory below 2^62 bytes: it has no unit",
       "give a number with B, KB, MB, GB, TB, KiB, MiB, GiB or TiB, such as 141GB"},
      {"--stack=2 --device_memory=80e9", "\"80e9\" is no amount of memory", "such as 141GB"},
      {"--stack=2 --device_memory=GB", "\"GB\" is no amount of memory", "such as 141GB"},
      {"--stack=2 --device_memory=80Gb/s", "\"80Gb/s\" is no amount of memory", "such as 141GB"},
      {"--stack=2 --device_memory=-1GB", "\"-1GB\" is no amount of memory", "such as 141GB"},
      {"--stack=2 --device_memory=1e3GB", "\"1e3GB\" is no amount of memory", "such as 141GB"},
      {"--stack=2 --device_memory=4194305TiB", "below 2^62 bytes", "such as 141GB"},
      {"--stack=2 --reduce=once_per_step --tail=carried", "reduce once_per_step has none", "choose one"},
      {"--stack=2 --slots=2", "no flag --slots", "--help"},
      {"--stack=2147483647", "stack of 2147483647 units", "at most 1048575"},
      {"--stack=110000", "may need", "fewer units and calls"},
      {"--stack=2 --microbatches_per_graph=1000000 --microbatches=1000000",
       "a graph of 1000000 microbatches of 3 calls", "lower microbatches_per_graph"},
      {"--stack=2 --microbatches_per_graph=2147483647", "at most 1048576", "lower microbatches_per_graph"},
      {"--flagfile=/nonexistent", "no flag --flagfile", "--help"},
      {"--fromenv=stack", "no flag --fromenv", "--help"},
      {"--tryfromenv=stack", "no flag --tryfromenv", "--help"},
      {"--undefok=x", "no flag --undefok", "--help"},
      {"--helpxyz", "no flag --helpxyz", "--help"},
      {"--only_check_args", "no flag --only_check_args", "--help"},
      {"--stack=2 text", "\"text\" is not a flag", "--name=value"},
      {"--stack", "--stack lacks a value", "--help"},
      {"--stack=2 --device_memory=", "--device_memory lacks a value", "--help"},
      {"--stack=2 --device_memory ''", "--device_memory lacks a value", "--help"},
      {"--stack=2 --format=overlap --costs=", "--costs lacks a value", "--help"},
      {"--stack=2 --weight_slots=", "--weight_slots lacks a value", "--help"},
  };
  for (const Case& c : cases) {
    const FinishedRun run = ToolErrors(c.flags);
    EXPECT_EQ(run.exit_code, 2) << c.flags;
    EXPECT_THAT(run.output, StartsWith("reprise_plan: ")) << c.flags;
    EXPECT_THAT(run.output, HasSubstr(c.what)) << c.flags;
    EXPECT_THAT(run.output, HasSubstr(c.remedy)) << c.flags;
    EXPECT_EQ(std::count(run.output.begin(), run.output.end(), '\n'), 1) << c.flags << "\n" << run.output;
    EXPECT_EQ(Tool(c.flags).output, "") << c.flags;
  }
}

}  // namespace
}  // namespace reprise
