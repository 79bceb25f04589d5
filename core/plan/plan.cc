#include "reprise/core/plan.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/plan/plan_fields.h"

namespace reprise {
namespace {

// Unsigned, so that a plan that Verify refuses has some sum too.
int64_t SumWhere(const std::array<int64_t, kNumStorages>& bytes, bool transient) {
  uint64_t sum = 0;
  for (int s = 0; s < kNumStorages; ++s) {
    if (IsTransient(static_cast<Storage>(s)) == transient) sum += static_cast<uint64_t>(bytes[s]);
  }
  return static_cast<int64_t>(sum);
}

void AddCounts(const Plan& plan, int schedule, int64_t times, PlanSummary& summary) {
  if (schedule < 0 || times == 0) return;
  for (const ScheduledCommand& command : plan.schedules[schedule].commands) {
    summary.all_gathers += std::holds_alternative<AllGather>(command.command) ? times : 0;
    summary.reduce_scatters += std::holds_alternative<ReduceScatter>(command.command) ? times : 0;
    summary.commands += times;
    summary.waits += times * static_cast<int64_t>(command.waits.size());
  }
}

}  // namespace

int64_t MemoryPlan::persistent_bytes() const { return SumWhere(num_bytes, /*transient=*/false); }
int64_t MemoryPlan::transient_bytes() const { return SumWhere(num_bytes, /*transient=*/true); }
int64_t MemoryPlan::transient_lower_bound_bytes() const { return SumWhere(lower_bound, /*transient=*/true); }

std::string Fingerprint::ToString() const {
  return absl::StrCat(absl::Hex(high, absl::kZeroPad16), absl::Hex(low, absl::kZeroPad16));
}

std::optional<AxisId> OrderedAxis(const Command& command) {
  using Axis = std::optional<AxisId>;
  return std::visit(Overloaded{
                        [](const AllGather& c) { return Axis(c.axis); },
                        [](const ReduceScatter& c) { return Axis(c.axis); },
                        [](const SumNorm& c) { return Axis(c.axis); },
                        [](const Begin&) { return Axis(); },
                        [](const NextMicrobatch&) { return Axis(); },
                        [](const StageInputs&) { return Axis(); },
                        [](const Forward&) { return Axis(); },
                        [](const Backward&) { return Axis(); },
                        [](const PackGradients&) { return Axis(); },
                        [](const Accumulate&) { return Axis(); },
                        [](const RecordLoss&) { return Axis(); },
                        [](const UpdateParameters&) { return Axis(); },
                        [](const RefreshShards&) { return Axis(); },
                        [](const PublishMetrics&) { return Axis(); },
                        [](const End&) { return Axis(); },
                    },
                    command);
}

absl::StatusOr<PlanSummary> Summarize(const Plan& plan, int microbatches) {
  const int per_graph = plan.options.microbatches_per_graph.value_or(1);
  const auto exists = [&](int schedule) { return schedule < static_cast<int64_t>(plan.schedules.size()); };
  if (per_graph < 1 || !exists(plan.first) || !exists(plan.body) || !exists(plan.finish) || !exists(plan.step)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the plan has ", plan.schedules.size(), " schedules of ", per_graph, " microbatches and names ", plan.first,
        ", ", plan.body, ", ", plan.finish, " and ", plan.step, " of them; give one that passes Verify"));
  }
  if (microbatches < 1 || microbatches % per_graph != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", microbatches, " microbatches does not divide into graphs of ", per_graph,
                     "; give a positive multiple of ", per_graph, ", or change microbatches_per_graph"));
  }
  PlanSummary summary;
  summary.microbatches = microbatches;
  AddCounts(plan, plan.first, 1, summary);
  AddCounts(plan, plan.body, microbatches / per_graph - 1, summary);
  AddCounts(plan, plan.finish, 1, summary);
  AddCounts(plan, plan.step, 1, summary);
  summary.persistent_bytes = plan.memory.persistent_bytes();
  summary.transient_bytes = plan.memory.transient_bytes();
  summary.transient_lower_bound_bytes = plan.memory.transient_lower_bound_bytes();
  summary.fingerprint = plan.fingerprint;
  return summary;
}

std::string Describe(const Plan& plan, const Command& command) {
  const internal::CommandFields fields = internal::FieldsOf(plan, command);
  std::string text(fields.kind);
  for (const auto& [name, value] : fields.fields) {
    if (name == "axis" && plan.axes.size() <= 1) continue;
    std::visit(Overloaded{[&, name = name](bool set) { absl::StrAppend(&text, set ? " " : "", set ? name : ""); },
                          [&, name = name](int64_t number) { absl::StrAppend(&text, " ", name, " ", number); },
                          [&, name = name](const std::string& word) {
                            absl::StrAppend(&text, name == "sum" ? " sum " : " ", word);
                          }},
               value);
  }
  return text;
}

}  // namespace reprise
