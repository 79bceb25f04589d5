// Prints the plan of a model: what is gathered and reduced, when, and in which memory. Needs no GPU and no rank.
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "examples/common/command_line.h"
#include "examples/common/plan_flags.h"
#include "examples/common/read_file.h"
#include "examples/reprise_plan/fit.h"
#include "examples/reprise_plan/options.h"
#include "examples/reprise_plan/prediction.h"
#include "examples/reprise_plan/summary.h"
#include "reprise/core/cost_file.h"
#include "reprise/core/overlap.h"
#include "reprise/core/plan.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "reprise/core/status_macros.h"
#include "reprise/core/timeline.h"
#include "reprise/core/verifier.h"

using OptionalInt = absl::optional<int>;

ABSL_FLAG(std::string, model, "", "model file (JSON); give this or --stack");
ABSL_FLAG(OptionalInt, stack, absl::nullopt,
          "number of equal linear units of a ready-made model; give this or --model");
ABSL_FLAG(std::string, param_shape, "16384x16384", "rows x columns of each unit's parameter, with --stack");
ABSL_FLAG(std::string, dtype, "bf16", "bf16 or f32: of parameters and activations, with --stack");
ABSL_FLAG(int64_t, tokens, 0, "rows of the activations of a microbatch, with --stack; 0: activations are not counted");
ABSL_FLAG(int, ranks, 2, "ranks that the model is sharded over");
ABSL_FLAG(int, microbatches, 1, "microbatches of a step, for summary, json, timeline and overlap");
ABSL_FLAG(bool, forward, false, "plan forward only");
ABSL_FLAG(bool, verify, true, "prove the plan safe before printing it");
ABSL_FLAG(
    std::string, format, "summary",
    "summary, text, json, dot, timeline (the predicted step, for chrome://tracing or Perfetto) or overlap (what of "
    "its communication compute hides)");
ABSL_FLAG(
    std::string, costs, "",
    "cost file (JSON), as step_bench --measure writes it: its transports are the plan's where --transports is not "
    "given or auto, and timeline and overlap take its costs; unset: two H200, which is a guess for more ranks");
ABSL_FLAG(
    std::string, device_memory, "",
    "for summary: whether the plan fits in so much memory of a device: a number with B, KB, MB, GB, TB (powers of "
    "1000) or KiB, MiB, GiB, TiB (powers of 1024), such as 141GB; the exit code says so too");

namespace reprise {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 28;
constexpr int kDoesNotFit = 3;  // exit code

template <class T>
using Words = std::vector<std::pair<const char*, T>>;

template <class T>
absl::StatusOr<T> Choose(const absl::Flag<std::string>& flag, const Words<T>& words) {
  const std::string text = absl::GetFlag(flag);
  std::vector<std::string> known;
  for (const auto& [word, value] : words) {
    if (text == word) return value;
    known.push_back(word);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag.Name(), " is \"", text, "\"; give one of: ", absl::StrJoin(known, ", ")));
}

// An error gets what the flags say in front.
template <class T>
absl::StatusOr<T> Named(const std::string& what, absl::StatusOr<T> result) {
  if (result.ok()) return result;
  return absl::Status(result.status().code(), absl::StrCat(what, ": ", std::string(result.status().message())));
}

absl::StatusOr<Shape> ReadShape() {
  const std::string text = absl::GetFlag(FLAGS_param_shape);
  Shape shape;
  bool ok = true;
  for (absl::string_view extent : absl::StrSplit(text, 'x')) {
    ok = ok && absl::SimpleAtoi(extent, &shape.emplace_back()) && shape.back() >= 0;
  }
  if (ok && shape.size() == 2) return shape;
  return absl::InvalidArgumentError(
      absl::StrCat("--param_shape is \"", text, "\"; give rows and columns, such as 16384x16384"));
}

// What `parse` makes of the file that a flag names.
template <class T>
absl::StatusOr<T> ReadNamedFile(const absl::Flag<std::string>& flag, absl::string_view kind,
                                absl::StatusOr<T> (*parse)(absl::string_view)) {
  const std::string path = absl::GetFlag(flag);
  const absl::StatusOr<std::string> text = examples::ReadFile(path, kMaxFileBytes);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag.Name(), ": ", std::string(text.status().message()),
                                                   "; give the path of a ", kind, " file"));
  }
  return Named(absl::StrCat("--", flag.Name(), "=", path), parse(*text));
}

absl::StatusOr<Model> ReadModel() {
  const std::string path = absl::GetFlag(FLAGS_model);
  const OptionalInt units = absl::GetFlag(FLAGS_stack);
  if (path.empty() == !units.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(path.empty() ? "neither" : "both", " of --model and --stack ",
                                                   path.empty() ? "is" : "are",
                                                   " given; give one: --model=FILE.json or --stack=UNITS"));
  }
  if (!path.empty()) return ReadNamedFile<Model>(FLAGS_model, "model", Model::FromJson);
  REPRISE_ASSIGN_OR_RETURN(const Shape shape, ReadShape());
  REPRISE_ASSIGN_OR_RETURN(const DType dtype,
                           Choose<DType>(FLAGS_dtype, {{"bf16", DType::kBFloat16}, {"f32", DType::kFloat32}}));
  if (absl::GetFlag(FLAGS_tokens) < 0) {
    return absl::InvalidArgumentError(absl::StrCat("--tokens is ", absl::GetFlag(FLAGS_tokens), "; give 0 or more"));
  }
  return Named(absl::StrCat("--stack=", *units, " --param_shape=", absl::GetFlag(FLAGS_param_shape)),
               StackModel(*units, shape, dtype, absl::GetFlag(FLAGS_tokens)));
}

// Whether the plan holds no activations because --tokens was not given.
bool LacksActivations() { return absl::GetFlag(FLAGS_model).empty() && absl::GetFlag(FLAGS_tokens) == 0; }

// A line about that, or nothing.
std::string ActivationsNote() {
  return LacksActivations() ? "ACTIVATIONS ARE NOT COUNTED: --tokens is 0; give the rows of a microbatch\n" : "";
}

// The predicted step, as a trace or as a report.
absl::StatusOr<std::string> Prediction(const Plan& plan, const PlanSummary& summary, const CostModel& costs,
                                       bool trace) {
  const std::string path = absl::GetFlag(FLAGS_costs);
  const std::string source =
      absl::StrCat(path, path.empty() ? "" : "; what it lacks: ", "two H200 with NVLink, the built-in ones");
  TraceNotes notes = NotesOn(plan, costs, source);
  if (LacksActivations()) {
    notes.push_back(
        {"activations",
         "not counted, so that compute takes too little time: --tokens is 0; give the rows of a microbatch"});
  }
  REPRISE_ASSIGN_OR_RETURN(const Timeline timeline, PredictStep(plan, summary, costs));
  if (trace) return ToChromeTrace(plan, timeline, "predicted", notes);
  REPRISE_ASSIGN_OR_RETURN(const OverlapReport report, AnalyzeOverlap(plan, timeline));
  std::string text;
  for (const auto& [key, note] : notes) absl::StrAppend(&text, key, ": ", note, "\n");
  return absl::StrCat(text, "\n", ToText(plan, report));
}

// Lines for the flags that say nothing about this model.
std::string IdleFlags() {
  std::string idle;
  if (absl::GetFlag(FLAGS_model).empty()) return idle;
  for (const char* name : {"param_shape", "dtype", "tokens"}) {
    const absl::CommandLineFlag& flag = *absl::FindCommandLineFlag(name);
    if (flag.CurrentValue() == flag.DefaultValue()) continue;
    absl::StrAppend(&idle, name, "=", flag.CurrentValue(), ": no effect: it is for --stack, and --model is given\n");
  }
  return idle;
}

enum class Format { kSummary, kText, kJson, kDot, kTimeline, kOverlap };

absl::StatusOr<std::string> Text(Format format, const Plan& plan, const PlanSummary& summary, const PlanOptions& asked,
                                 const CostFile& costs, std::optional<int64_t> device_memory) {
  switch (format) {
    case Format::kSummary:
      return absl::StrCat(
          SummaryTable(plan, summary), ActivationsNote(),
          OptionsTable(plan, asked, {.transports = costs.transports}, !absl::GetFlag(FLAGS_forward), IdleFlags()),
          device_memory.has_value() ? FitTable(plan, *device_memory, ActivationsNote()) : "");
    case Format::kText:
      return ToText(plan);
    case Format::kJson:
      return ToJson(plan, summary.microbatches);
    case Format::kDot:
      return ToDot(plan);
    case Format::kTimeline:
    case Format::kOverlap:
      return Prediction(plan, summary, costs.costs, format == Format::kTimeline);
  }
  return absl::InternalError("no format");
}

struct Answer {
  std::string text;
  int exit_code = 0;
};

absl::StatusOr<Answer> Output() {
  REPRISE_ASSIGN_OR_RETURN(const Format format, Choose<Format>(FLAGS_format, {{"summary", Format::kSummary},
                                                                              {"text", Format::kText},
                                                                              {"json", Format::kJson},
                                                                              {"dot", Format::kDot},
                                                                              {"timeline", Format::kTimeline},
                                                                              {"overlap", Format::kOverlap}}));
  std::optional<int64_t> device_memory;
  if (!absl::GetFlag(FLAGS_device_memory).empty()) {
    if (format != Format::kSummary) {
      return absl::InvalidArgumentError("--device_memory is for --format=summary; leave it out");
    }
    REPRISE_ASSIGN_OR_RETURN(device_memory,
                             Named("--device_memory", BytesFromText(absl::GetFlag(FLAGS_device_memory))));
  }
  REPRISE_ASSIGN_OR_RETURN(PlanOptions options, examples::ReadPlanFlags({}));
  CostFile costs;
  if (!absl::GetFlag(FLAGS_costs).empty()) {
    REPRISE_ASSIGN_OR_RETURN(costs, ReadNamedFile<CostFile>(FLAGS_costs, "cost", CostFileFromJson));
  }
  if (options.transports.empty()) options.transports = costs.transports;
  REPRISE_ASSIGN_OR_RETURN(const Model model, ReadModel());
  const auto make_plan = absl::GetFlag(FLAGS_forward) ? PlanForward : PlanTraining;
  REPRISE_ASSIGN_OR_RETURN(const Plan plan, make_plan(model, absl::GetFlag(FLAGS_ranks), options));
  REPRISE_ASSIGN_OR_RETURN(const PlanSummary summary, Summarize(plan, absl::GetFlag(FLAGS_microbatches)));
  if (absl::GetFlag(FLAGS_verify)) REPRISE_RETURN_IF_ERROR(Verify(plan));
  Answer answer;
  REPRISE_ASSIGN_OR_RETURN(answer.text, Text(format, plan, summary, options, costs, device_memory));
  if (device_memory.has_value() && DeviceBytes(plan) > *device_memory) answer.exit_code = kDoesNotFit;
  return answer;
}

absl::StatusOr<int> Main() {
  REPRISE_ASSIGN_OR_RETURN(const Answer answer, Output());
  std::cout << answer.text;
  return answer.exit_code;
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  return reprise::examples::RunProgram(
      argc, argv,
      "prints how a model is trained: its schedules, memory and counts.\n\n"
      "  reprise_plan --stack=4 --ranks=2 --microbatches=2\n"
      "  reprise_plan --stack=2 --param_shape=64x64 --tokens=8 --residency=off --format=text\n"
      "  reprise_plan --model=model.json --format=dot | dot -Tsvg > plan.svg\n"
      "  reprise_plan --stack=4 --tokens=8192 --microbatches=2 --format=overlap\n"
      "  reprise_plan --stack=4 --tokens=8192 --device_memory=141GB",
      reprise::Main, "3 the plan does not fit in --device_memory");
}
