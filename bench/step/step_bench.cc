// Milliseconds per microbatch, forward and backward with gradient accumulation, in steady state:
//
//   step_bench --workloads=mlp4,mlp4s --modes=local,eager,graph --ranks=2
//
// local: what computes alone, the weights present, with the same kernels; eager: every command enqueued anew; graph:
// one launch. Ratios are to the workload's local. `--profile` adds what of the communication compute hides, command by
// command, and `--timeline=PREFIX` writes it for Perfetto. `--json=FILE` keeps the figures. `--measure=FILE` first
// measures what is quickest on these GPUs, and keeps that, and the rates that the figures show, for `--costs=FILE`.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/step/workloads.h"
#include "core/plan/plan_fields.h"
#include "examples/common/command_line.h"
#include "examples/common/output.h"
#include "examples/common/plan_flags.h"
#include "examples/common/world.h"
#include "graph/step_runner.h"
#include "nlohmann/json.hpp"
#include "reprise/core/overlap.h"
#include "reprise/core/planner.h"
#include "reprise/core/status_macros.h"
#include "reprise/core/timeline.h"
#include "reprise/graph/measure.h"

ABSL_FLAG(std::vector<std::string>, workloads, std::vector<std::string>({"mlp4s", "mlp4", "seed4"}),
          "of seed4 (4 linear layers of 16384 x 16384, 8192 tokens), mlp4 (4 MLPs of 4096 x 16384, 4096 tokens), mlp4s "
          "(4 of 1024 x 4096, 1024 tokens) and tiny (for tests)");
ABSL_FLAG(std::vector<std::string>, modes, std::vector<std::string>({"local", "eager", "graph"}),
          "of local (compute alone), eager (every command enqueued anew) and graph (one launch)");
ABSL_FLAG(bool, profile, false, "time each command, and report what of the communication compute hides");
ABSL_FLAG(std::string, timeline, "", "with --profile: PREFIX of files PREFIX-workload-mode.json, for Perfetto");
ABSL_FLAG(int, batches, 10, "measurements, of which the median is taken");
ABSL_FLAG(double, seconds, 0.2, "length of each measurement, about");
ABSL_FLAG(
    std::string, measure, "",
    "on devices: measure the quickest transports and GEMMs first, and write them to this cost file with the rates "
    "of what then runs, which is profiled");
ABSL_FLAG(std::string, json, "", "file for a list of objects, one for each workload and mode");

namespace reprise::bench {
namespace {

using Clock = std::chrono::steady_clock;
using examples::CheckFlag;
using examples::CheckOutput;
using examples::WriteFile;
using internal::StepRunner;

double Since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Per microbatch, of the first rank; medians over replays.
struct ProfileFigures {
  double compute_us = 0;
  std::array<double, kNumExposedCauses> exposed_us = {};
  double gather_gb_per_s = 0, reduce_gb_per_s = 0;  // of the transfers, medians over commands
  std::string table;                                // of the last replay
  std::string trace;                                // of it, by Chrome's format
};

struct Figures {
  std::string workload, mode;
  PlanOptions options;
  int ranks = 1;
  double ms_median = 0, ms_low = 0, ms_high = 0;  // per microbatch
  double ratio_to_local = 0;                      // 0: local was not measured
  double teraflops = 0;                           // per rank
  double launch_us = 0;                           // host time of one replay, median
  int64_t planned_bytes = 0;
  MemoryUse memory = {};
  GraphAudit audit = {};
  double record_seconds = 0;
  bool results_equal = true;  // eager and graph leave the same accumulators
  std::optional<ProfileFigures> profile = {};
};

template <class... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Two slots of each kind, and weights that are the masters: these take memory but no time here.
absl::StatusOr<PlanOptions> OptionsOfFlags() {
  return examples::ReadPlanFlags(
      {.weight_slots = 2, .gradient_slots = 2, .master_dtype = DType::kBFloat16, .optimizer_states = 0});
}

bool Measures() { return !absl::GetFlag(FLAGS_measure).empty(); }

// The modes to run, local first: the others' ratios are to it.
absl::StatusOr<std::vector<std::string>> Modes() {
  const std::vector<std::string> known = {"local", "eager", "graph"}, asked = absl::GetFlag(FLAGS_modes);
  std::vector<std::string> modes;
  for (const std::string& mode : known) {
    if (absl::c_linear_search(asked, mode)) modes.push_back(mode);
  }
  for (const std::string& mode : asked) {
    if (!absl::c_linear_search(known, mode)) modes.clear();
  }
  if (!modes.empty() && Measures() && (modes.size() == 1 || modes[0] != "local")) {
    return Refuse("--measure needs the rates of compute alone and of communication; give --modes=local,graph");
  }
  if (!modes.empty()) return modes;
  return Refuse("--modes is \"", absl::StrJoin(asked, ","), "\"; choose from ", absl::StrJoin(known, ", "));
}

// A file can be made there.
absl::Status CheckWritable(const char* flag, const std::string& path, bool is_prefix = false) {
  if (path.empty()) return absl::OkStatus();
  if (!is_prefix && std::filesystem::is_directory(path)) {
    return Refuse("--", flag, "=", path, " is a folder; name a file");
  }
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (access((folder / ".").c_str(), W_OK) == 0) return absl::OkStatus();
  return Refuse("--", flag, "=", path, " is in no folder that can be written to (", std::strerror(errno),
                "); name another one");
}

// Before anything is measured, which may take minutes.
absl::Status CheckFlags() {
  REPRISE_RETURN_IF_ERROR(CheckFlag(FLAGS_batches, 1, 10'000));
  const double seconds = absl::GetFlag(FLAGS_seconds);
  if (!(seconds > 0 && seconds <= 3600)) return Refuse("--seconds is ", seconds, "; give more than 0, up to 3600");
  const std::vector<std::string> workloads = absl::GetFlag(FLAGS_workloads);
  if (workloads.empty()) return Refuse("--workloads is empty; name one or more");
  for (const std::string& name : workloads) {
    REPRISE_RETURN_IF_ERROR(MakeWorkload(name, /*external=*/true).status());
  }
  REPRISE_RETURN_IF_ERROR(Modes().status());
  if (!absl::GetFlag(FLAGS_timeline).empty() && !absl::GetFlag(FLAGS_profile)) {
    return Refuse("--timeline needs --profile; add it");
  }
  REPRISE_RETURN_IF_ERROR(CheckWritable("json", absl::GetFlag(FLAGS_json)));
  REPRISE_RETURN_IF_ERROR(CheckWritable("measure", absl::GetFlag(FLAGS_measure)));
  return CheckWritable("timeline", absl::GetFlag(FLAGS_timeline), /*is_prefix=*/true);
}

// Replays that take about as long as asked for, the same number on all ranks.
absl::StatusOr<int> ReplaysPerBatch(StepRunner& runner) {
  const auto start = Clock::now();
  constexpr int kTries = 3;
  for (int i = 0; i < kTries; ++i) REPRISE_RETURN_IF_ERROR(runner.ReplayBody());
  REPRISE_RETURN_IF_ERROR(runner.world().Synchronize());
  const double seconds = Since(start) / kTries;
  const std::vector<double> mine(runner.world().local_ranks().size(), seconds);
  REPRISE_ASSIGN_OR_RETURN(const double sum, runner.world().Sum(mine, "seconds of a replay"));
  return std::max(1, static_cast<int>(absl::GetFlag(FLAGS_seconds) * runner.world().size() / sum));
}

absl::Status Measure(StepRunner& runner, double flops, Figures& figures) {
  REPRISE_RETURN_IF_ERROR(runner.BeginStep());
  REPRISE_RETURN_IF_ERROR(runner.ReplayFirst());
  REPRISE_RETURN_IF_ERROR(runner.ReplayBody());
  REPRISE_RETURN_IF_ERROR(runner.world().Synchronize());
  REPRISE_ASSIGN_OR_RETURN(const int replays, ReplaysPerBatch(runner));
  const double microbatches = static_cast<double>(replays) * *runner.plan().options.microbatches_per_graph;
  std::vector<double> milliseconds, launches;
  for (int batch = 0; batch < absl::GetFlag(FLAGS_batches); ++batch) {
    const auto start = Clock::now();
    for (int i = 0; i < replays; ++i) {
      const auto launch = Clock::now();
      REPRISE_RETURN_IF_ERROR(runner.ReplayBody());
      if (i < 10) launches.push_back(1e6 * Since(launch));  // before a full queue makes launches wait
    }
    REPRISE_RETURN_IF_ERROR(runner.world().Synchronize());
    milliseconds.push_back(1e3 * Since(start) / microbatches);
  }
  figures.ms_median = Median(milliseconds);
  figures.ms_low = *std::min_element(milliseconds.begin(), milliseconds.end());
  figures.ms_high = *std::max_element(milliseconds.begin(), milliseconds.end());
  figures.launch_us = Median(launches);
  figures.teraflops = flops / figures.ms_median * 1e-9;
  return absl::OkStatus();
}

// What two microbatches leave in the accumulators.
absl::StatusOr<std::string> Results(StepRunner& runner) {
  REPRISE_RETURN_IF_ERROR(runner.BeginStep());
  REPRISE_RETURN_IF_ERROR(runner.ReplayFirst());
  REPRISE_RETURN_IF_ERROR(runner.ReplayBody());
  return runner.ReadAccumulators();
}

absl::Status Profile(StepRunner& runner, Figures& figures) {
  constexpr int kReplays = 9;
  const Plan& plan = runner.plan();
  REPRISE_RETURN_IF_ERROR(runner.world().StartProfile(plan));
  REPRISE_RETURN_IF_ERROR(runner.BeginStep());
  REPRISE_RETURN_IF_ERROR(runner.ReplayFirst());
  // Ranks may start the first replays apart.
  for (int replay = 0; replay <= kReplays; ++replay) REPRISE_RETURN_IF_ERROR(runner.ReplayBody());
  REPRISE_ASSIGN_OR_RETURN(const Timeline timeline, runner.world().StopProfile());
  ProfileFigures& profile = figures.profile.emplace();
  std::vector<double> compute, gather, reduce;
  std::array<std::vector<double>, kNumExposedCauses> exposed;
  for (int replay = 2; replay < 2 + kReplays; ++replay) {
    Timeline one;
    for (const CommandSpan& span : timeline.spans) {
      if (span.replay == replay) one.spans.push_back(span);
    }
    REPRISE_ASSIGN_OR_RETURN(const OverlapReport report, AnalyzeOverlap(plan, one));
    const int microbatches = *runner.plan().options.microbatches_per_graph;
    compute.push_back(report.ranks[0].compute_us / microbatches);
    for (int c = 0; c < kNumExposedCauses; ++c) exposed[c].push_back(report.ranks[0].exposed_us[c] / microbatches);
    for (const CommunicationSpan& span : report.communication) {
      const Command& command = plan.schedules[span.schedule].commands[span.command.value()].command;
      const double gb_per_s = static_cast<double>(TransferredBytes(plan, command)) / span.duration_us() * 1e-3;
      (std::holds_alternative<AllGather>(command) ? gather : reduce).push_back(gb_per_s);
    }
    profile.table = ToText(plan, report);
    REPRISE_ASSIGN_OR_RETURN(profile.trace,
                             ToChromeTrace(plan, one, absl::StrCat(figures.workload, " ", figures.mode)));
  }
  profile.compute_us = Median(compute);
  for (int c = 0; c < kNumExposedCauses; ++c) profile.exposed_us[c] = Median(exposed[c]);
  if (!gather.empty()) profile.gather_gb_per_s = Median(gather);
  if (!reduce.empty()) profile.reduce_gb_per_s = Median(reduce);
  return absl::OkStatus();
}

bool Computes(const Command& command) {
  return std::holds_alternative<Begin>(command) || std::holds_alternative<End>(command) ||
         std::holds_alternative<NextMicrobatch>(command) || std::holds_alternative<StageInputs>(command) ||
         std::holds_alternative<Forward>(command) || std::holds_alternative<Backward>(command);
}

// Of the plan's schedules `first` and `body`, those commands alone that compute: the weights are taken to be there.
Plan ComputeOnly(Plan plan) {
  for (const int s : {plan.first, plan.body}) {
    Schedule& schedule = plan.schedules[s];
    std::vector<ScheduledCommand> kept;
    for (ScheduledCommand& command : schedule.commands) {
      if (!Computes(command.command)) continue;
      command.waits.clear();
      command.lane = Lane::kCompute;
      kept.push_back(std::move(command));
    }
    if (!kept.empty()) schedule.commands = std::move(kept);
  }
  return plan;
}

// Of mode by mode. kWarmUp gives no figures.
constexpr char kWarmUp[] = "warm-up";
absl::StatusOr<std::vector<Figures>> RunWorkload(const std::shared_ptr<internal::Machine>& world,
                                                 const std::string& name, PlanOptions options,
                                                 const std::vector<std::string>& modes) {
  // A graph of several microbatches stages its inputs.
  REPRISE_ASSIGN_OR_RETURN(const Workload workload,
                           MakeWorkload(name, options.microbatches_per_graph.value_or(1) == 1));
  if (options.transports.empty()) options.transports = world->auto_transports().choices;
  options.sum = options.sum.value_or(world->auto_transports().sum);
  REPRISE_ASSIGN_OR_RETURN(const Plan plan, PlanTraining(workload.model, world->size(), options));
  std::vector<Figures> all;
  std::optional<double> local;
  std::optional<std::string> results;
  for (const std::string& mode : modes) {
    Figures figures = {.workload = name, .mode = mode, .options = plan.options, .ranks = world->size()};
    REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<StepRunner> runner,
                             StepRunner::Create(world, mode == "local" ? ComputeOnly(plan) : plan, workload.compute));
    if (mode == kWarmUp) continue;
    REPRISE_RETURN_IF_ERROR(runner->Record(mode == "eager" ? Execution::kEager : Execution::kGraph));
    figures.record_seconds = runner->record_seconds();
    figures.audit = runner->audit();
    figures.planned_bytes = plan.memory.persistent_bytes() + plan.memory.transient_bytes();
    if (mode != "local") {
      REPRISE_ASSIGN_OR_RETURN(const std::string now, Results(*runner));
      figures.results_equal = now == results.value_or(now);
      results = now;
    }
    REPRISE_RETURN_IF_ERROR(Measure(*runner, workload.flops, figures));
    if (mode == "local") local = figures.ms_median;
    if (local.has_value()) figures.ratio_to_local = figures.ms_median / *local;
    figures.memory = world->memory();
    if (absl::GetFlag(FLAGS_profile) || Measures()) REPRISE_RETURN_IF_ERROR(Profile(*runner, figures));
    all.push_back(figures);
  }
  return all;
}

void PrintProfile(const Figures& f) {
  const ProfileFigures& p = *f.profile;
  std::cout << absl::StrFormat("  %s %s, per microbatch: compute %.0f us", f.workload, f.mode, p.compute_us);
  for (int c = 0; c < kNumExposedCauses; ++c) {
    std::cout << absl::StrFormat(", %s %.0f us (%.2f %%)", Name(static_cast<ExposedCause>(c)), p.exposed_us[c],
                                 p.exposed_us[c] / f.ms_median / 10);
  }
  std::cout << absl::StrFormat("; gathers %.0f GB/s, reductions %.0f GB/s\n", p.gather_gb_per_s, p.reduce_gb_per_s)
            << p.table << std::flush;
}

void Print(const Figures& f) {
  std::cout << absl::StrFormat("%-6s %-6s %9.3f %9.3f %9.3f %7.3f %7.0f %9.1f %6d %8.2f %10.1f %10.1f  %s\n",
                               f.workload, f.mode, f.ms_median, f.ms_low, f.ms_high, f.ratio_to_local, f.teraflops,
                               f.launch_us, f.audit.nodes(), f.record_seconds,
                               static_cast<double>(f.planned_bytes) / 1048576,
                               static_cast<double>(f.memory.requested + f.memory.rounding + f.memory.recording +
                                                   f.memory.communication) /
                                   1048576,
                               f.results_equal ? "equal" : "DIFFERENT")
            << std::flush;
}

nlohmann::ordered_json ToJson(const Figures& f) {
  nlohmann::ordered_json json = {{"workload", f.workload},
                                 {"mode", f.mode},
                                 {"ranks", f.ranks},
                                 {"ms_median", f.ms_median},
                                 {"ms_low", f.ms_low},
                                 {"ms_high", f.ms_high},
                                 {"ratio_to_local", f.ratio_to_local},
                                 {"teraflops", f.teraflops},
                                 {"launch_us", f.launch_us},
                                 {"graph_nodes", f.audit.nodes()},
                                 {"record_seconds", f.record_seconds},
                                 {"planned_bytes", f.planned_bytes},
                                 {"requested_bytes", f.memory.requested},
                                 {"rounding_bytes", f.memory.rounding},
                                 {"recording_bytes", f.memory.recording},
                                 {"communication_bytes", f.memory.communication},
                                 {"results_equal", f.results_equal}};
  for (const internal::Field& field : internal::FieldsOf(f.options)) {
    std::visit([&](const auto& value) { json[std::string(field.name)] = value; }, field.value);
  }
  if (!f.profile.has_value()) return json;
  json["compute_us"] = f.profile->compute_us;
  for (int c = 0; c < kNumExposedCauses; ++c) {
    json[absl::StrCat("exposed_", std::string(Name(static_cast<ExposedCause>(c))), "_us")] = f.profile->exposed_us[c];
  }
  json["gather_gb_per_s"] = f.profile->gather_gb_per_s;
  json["reduce_gb_per_s"] = f.profile->reduce_gb_per_s;
  return json;
}

// Keeps the best rates, of those that were measured.
void Improve(CostModel& costs, const Figures& f) {
  if (f.mode == "local") costs.flops = std::max(costs.flops, f.teraflops * 1e12);
  costs.gather_bandwidth = std::max(costs.gather_bandwidth, f.profile->gather_gb_per_s * 1e9);
  costs.reduce_bandwidth = std::max(costs.reduce_bandwidth, f.profile->reduce_gb_per_s * 1e9);
}

absl::StatusOr<int> Main() {
  REPRISE_RETURN_IF_ERROR(CheckFlags());
  REPRISE_ASSIGN_OR_RETURN(const PlanOptions options, OptionsOfFlags());
  REPRISE_ASSIGN_OR_RETURN(const examples::Program program, examples::StartProgram());
  if (program.exit_code.has_value()) return *program.exit_code;
  const std::shared_ptr<internal::Machine> world = internal::MachineOf(program.world);
  CostFile costs;
  if (Measures()) {
    const auto run = [&]() -> absl::Status {
      for (const std::string& name : absl::GetFlag(FLAGS_workloads)) {
        REPRISE_RETURN_IF_ERROR(RunWorkload(world, name, options, {kWarmUp}).status());
      }
      return absl::OkStatus();
    };
    const auto print = [&](absl::string_view line) {
      if (program.prints) std::cout << "measured: " << line << std::endl;
    };
    REPRISE_ASSIGN_OR_RETURN(costs, reprise::Measure(*world, {.run = run, .progress = print}));
  }
  if (program.prints) {
    if (options.transports.empty()) {
      const internal::AutoTransports transports = world->auto_transports();
      std::cout << "transports: "
                << (transports.choices.empty() ? ToText(EveryUnit(UnitTransports())) : ToText(transports.choices))
                << " (" << transports.reason << ")\n";
    }
    std::cout
        << "workload mode      ms      low      high   ratio TFLOP/s launch us  nodes record s  planned MiB  taken "
           "MiB  results\n";
    REPRISE_RETURN_IF_ERROR(CheckOutput());
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  CostModel& best = costs.costs = {.flops = 0, .gather_bandwidth = 0, .reduce_bandwidth = 0, .ranks = world->size()};
  bool equal = true;
  absl::Status status;
  for (const std::string& name : absl::GetFlag(FLAGS_workloads)) {
    const absl::StatusOr<std::vector<Figures>> all = RunWorkload(world, name, options, *Modes());
    status = all.status();
    if (!status.ok()) break;  // what was measured before is kept
    for (const Figures& figures : *all) {
      if (program.prints) {
        Print(figures);
        if (absl::GetFlag(FLAGS_profile)) PrintProfile(figures);
        if (figures.profile.has_value() && !absl::GetFlag(FLAGS_timeline).empty()) {
          REPRISE_RETURN_IF_ERROR(
              WriteFile(absl::StrCat(absl::GetFlag(FLAGS_timeline), "-", figures.workload, "-", figures.mode, ".json"),
                        figures.profile->trace + "\n"));
        }
      }
      json.push_back(ToJson(figures));
      if (Measures()) Improve(best, figures);
      equal = equal && figures.results_equal;
    }
    status = CheckOutput();
    if (!status.ok()) break;
  }
  const std::string path = absl::GetFlag(FLAGS_json);
  if (program.prints && !path.empty()) REPRISE_RETURN_IF_ERROR(WriteFile(path, json.dump(2) + "\n"));
  REPRISE_RETURN_IF_ERROR(status);
  if (program.prints && Measures()) {
    if (best.gather_bandwidth == 0 || best.reduce_bandwidth == 0)
      best = {.flops = best.flops};  // nothing was transferred
    REPRISE_RETURN_IF_ERROR(WriteCostFile(absl::GetFlag(FLAGS_measure), costs));
  }
  if (!equal) return absl::InternalError("eager and graph replays left different gradients");
  return 0;
}

}  // namespace
}  // namespace reprise::bench

int main(int argc, char** argv) {
  return reprise::examples::RunProgram(
      argc, argv,
      "measures forward and backward of sharded models: milliseconds per microbatch in steady state.\n\n"
      "  step_bench --workloads=mlp4,mlp4s --modes=local,eager,graph --ranks=2\n"
      "  step_bench --device=host --workloads=tiny --profile --timeline=trace",
      reprise::bench::Main);
}
