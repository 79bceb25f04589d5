#include "reprise/core/planner.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/plan/plan_fields.h"
#include "core/planner/graph_planner.h"
#include "core/planner/memory/memory_planner.h"
#include "core/planner/model_uses.h"
#include "core/planner/plan_buffers.h"
#include "core/planner/residency.h"
#include "core/policy/transport_checks.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

using internal::GatherPlan;
using internal::ModelUses;
using internal::StartResident;
using internal::WeightAccess;

// Graphs that follow another start with what the one before kept. Each round drops what the body would not end with,
// so few are needed; after this many the body starts with nothing, which is always right.
constexpr int kMaxResidencyRounds = 16;

// Of optimizers that keep something per element; Adam has 2.
constexpr int kMaxOptimizerStates = 16;
// Bounds the memory and time of planning: a million commands take a few GB and half a minute.
constexpr int64_t kMaxGraphCommands = int64_t{1} << 20;
constexpr int64_t kMaxGraphUses = int64_t{1} << 24;

absl::Status CheckAtLeast(const char* option, std::optional<int> value, int least) {
  if (!value.has_value() || *value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, " is ", *value, " but must be at least ", least, "; leave it unset for the default"));
}

// `last` is the last enumerator, `word` names one.
template <class Enum>
absl::Status CheckKnown(const char* option, Enum value, Enum last, absl::string_view (*word)(Enum)) {
  if (value <= last) return absl::OkStatus();
  std::vector<absl::string_view> words;
  for (int known = 0; known <= static_cast<int>(last); ++known) words.push_back(word(static_cast<Enum>(known)));
  return absl::InvalidArgumentError(absl::StrCat(option, " is ", static_cast<int>(value),
                                                 ", which does not exist; use one of ", absl::StrJoin(words, ", ")));
}

absl::Status CheckOptions(const PlanOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("prefetch_depth", options.prefetch_depth, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("weight_slots", options.weight_slots, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("gradient_slots", options.gradient_slots, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("microbatches_per_graph", options.microbatches_per_graph, 1));
  if (options.optimizer_states < 0 || options.optimizer_states > kMaxOptimizerStates) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer_states is ", options.optimizer_states, "; give 0 to ", kMaxOptimizerStates));
  }
  REPRISE_RETURN_IF_ERROR(CheckKnown("residency", options.residency, Residency::kOff, Name));
  REPRISE_RETURN_IF_ERROR(CheckKnown("reduce", options.reduce, Reduce::kOncePerStep, Name));
  REPRISE_RETURN_IF_ERROR(CheckKnown("tail", options.tail, Tail::kCarried, Name));
  REPRISE_RETURN_IF_ERROR(CheckKnown("sum", options.sum.value_or(Sum::kRankOrder), Sum::kNccl, Name));
  REPRISE_RETURN_IF_ERROR(internal::CheckTransportChoices(options.transports, options.sum.value_or(Sum::kRankOrder)));
  for (const auto& [name, dtype] :
       {std::pair{"reduce_dtype", options.reduce_dtype}, std::pair{"master_dtype", options.master_dtype}}) {
    if (IsFloatingPoint(dtype)) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, " is ", std::string(Name(dtype)), " but must be f32 or bf16"));
  }
  if (options.tail == Tail::kCarried && options.reduce == Reduce::kOncePerStep) {
    return absl::InvalidArgumentError(absl::StrCat("tail ", Name(options.tail),
                                                   " needs a reduction in every graph, and reduce ",
                                                   Name(options.reduce), " has none; choose one of them"));
  }
  return absl::OkStatus();
}

// The most units that one call, or one backward call, needs at once; and the call.
struct SlotNeed {
  int units = 0;
  int call = -1;
};

SlotNeed WeightSlotNeed(const ModelUses& uses) {
  SlotNeed need;
  for (size_t c = 0; c < uses.calls.size(); ++c) {
    const internal::CallUses& call = uses.calls[c];
    const size_t units = std::max(call.forward_units.size(), call.backward ? call.backward_units.size() : 0);
    if (static_cast<int>(units) > need.units) need = {static_cast<int>(units), static_cast<int>(c)};
  }
  return need;
}

// Accesses of one graph: forward calls, then, when training, the backward calls in reverse; for each microbatch.
std::vector<WeightAccess> Accesses(const ModelUses& uses, int microbatches, bool training) {
  std::vector<WeightAccess> accesses;
  for (int m = 0; m < microbatches; ++m) {
    for (size_t c = 0; c < uses.calls.size(); ++c) accesses.push_back({uses.calls[c].forward_units, c > 0});
    bool continues = false;
    for (size_t c = uses.calls.size(); training && c-- > 0;) {
      if (!uses.calls[c].backward) continue;
      accesses.push_back({uses.calls[c].backward_units, std::exchange(continues, true)});
    }
  }
  return accesses;
}

// The most commands that a graph may have, and the most buffers that they may use.
struct GraphSize {
  int64_t commands = 0, uses = 0;
};

GraphSize LargestGraph(const Model& model, const ModelUses& uses, const ModelLayout& layout, int microbatches,
                       bool training) {
  constexpr int64_t kBoundaryCommands = 3;                    // Begin, NextMicrobatch, End
  constexpr int64_t kMicrobatchCommands = 2;                  // StageInputs, RecordLoss
  const int64_t reduce_commands_per_unit = training ? 3 : 0;  // PackGradients, ReduceScatter, Accumulate
  constexpr int64_t kReduceUsesPerGroup = 4;                  // what is received, twice; accumulator; partial norms
  const auto size = [](const auto& list) { return static_cast<int64_t>(list.size()); };
  int64_t groups = 0;
  for (const UnitLayout& unit : layout.units) groups = std::max(groups, size(unit.groups));
  const int64_t reduce_commands = reduce_commands_per_unit * size(model.units());
  const int64_t reduce_uses = training ? (kReduceUsesPerGroup * groups + 1) * size(model.units()) : 0;
  GraphSize of_microbatch = {kMicrobatchCommands + reduce_commands,
                             reduce_uses + size(model.parameters()) + 2 * size(model.tensors())};
  for (size_t c = 0; c < uses.calls.size(); ++c) {
    const internal::CallUses& call = uses.calls[c];
    const CallSpec& spec = model.calls()[c];
    const int64_t gathers = size(call.forward_units) + (call.backward ? size(call.backward_units) : 0);
    of_microbatch.commands += gathers + 1 + (call.backward ? 1 : 0) + (spec.recompute ? 1 : 0);
    of_microbatch.uses += 2 * groups * gathers + 2 * size(call.forward_parameters) + size(call.backward_parameters) +
                          4 * size(call.parameter_gradients) + size(call.input_gradients) +
                          size(call.output_gradients) + 2 * size(call.inputs) + 2 * size(spec.outputs) +
                          3 * size(spec.saved) + 3 * (size(spec.state) + 2);
  }
  // The reductions of one more microbatch may be carried from the graph before.
  return {kBoundaryCommands + reduce_commands + microbatches * of_microbatch.commands,
          (int64_t{microbatches} + 1) * of_microbatch.uses};
}

absl::Status CheckGraphSize(const Model& model, const ModelUses& uses, const ModelLayout& layout, int microbatches,
                            bool training) {
  const GraphSize size = LargestGraph(model, uses, layout, microbatches, training);
  if (size.commands <= kMaxGraphCommands && size.uses <= kMaxGraphUses) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a graph of ", microbatches, microbatches == 1 ? " microbatch" : " microbatches", " of ",
                   model.calls().size(), " calls may need ", size.commands, " commands with ", size.uses,
                   " buffer uses, but at most ", kMaxGraphCommands, " with ", kMaxGraphUses, " are planned; ",
                   microbatches == 1 ? "give the model fewer units and calls" : "lower microbatches_per_graph"));
}

// What the body starts with: the copies that both `first` and the body itself end with, in the same slots.
std::vector<StartResident> SteadyResidents(const std::vector<WeightAccess>& accesses,
                                           const internal::GatherOptions& options) {
  const auto ends_with = [&](const std::vector<StartResident>& start) {
    std::vector<StartResident> end;
    const GatherPlan plan = internal::PlanGathers(accesses, start, options);
    for (const internal::GatheredCopy& copy : plan.copies) {
      if (copy.kept) end.push_back({copy.unit, copy.slot});
    }
    std::sort(end.begin(), end.end(), [](const auto& a, const auto& b) { return a.unit < b.unit; });
    return end;
  };
  if (options.residency == Residency::kOff) return {};
  std::vector<StartResident> steady = ends_with({});
  for (int round = 0; round < kMaxResidencyRounds && !steady.empty(); ++round) {
    const std::vector<StartResident> end = ends_with(steady);
    std::vector<StartResident> both;
    std::set_intersection(
        steady.begin(), steady.end(), end.begin(), end.end(), std::back_inserter(both),
        [](const auto& a, const auto& b) { return std::pair(a.unit, a.slot) < std::pair(b.unit, b.slot); });
    if (both == steady) return steady;
    steady = std::move(both);
  }
  return {};
}

// What each unit gets; the options then say so for all units if those that travel are alike.
void ResolveUnits(Plan& plan) {
  plan.options.sum = plan.options.sum.value_or(Sum::kRankOrder);
  std::optional<UnitTransports> first;
  bool alike = true;
  for (const UnitLayout& unit : plan.layout.units) {
    const UnitTransports transports = TransportsFor(plan.options.transports, unit.gathered_bytes);
    plan.unit_policies.push_back({transports, *plan.options.sum});
    if (unit.gathered_bytes == 0) continue;
    alike = alike && first.value_or(transports) == transports;
    first = first.value_or(transports);
  }
  if (!alike) return;
  plan.options.transports = EveryUnit(first.value_or(UnitTransports()));
  for (UnitPolicy& policy : plan.unit_policies) policy.transports = plan.options.transports.front().transports;
}

// The units whose gradients the last backward call completes, with a reduce buffer and a slot of their own each.
void AddCarried(Plan& plan, const internal::GradientPlan& gradients, internal::CarriedState& carried_state) {
  for (const std::vector<UnitId>& completed : gradients.completed_by) {
    if (completed.empty()) continue;
    for (UnitId unit : completed) {
      carried_state.outstanding.push_back(
          {unit, internal::AddReduceBuffer(plan, unit, "carried"),
           *plan.options.gradient_slots + gradients.units[unit.value()].dedicated_slot});
    }
    std::sort(carried_state.outstanding.begin(), carried_state.outstanding.end(),
              [](const auto& a, const auto& b) { return a.unit < b.unit; });
    return;
  }
}

// Tells buffers of several graphs apart: those from index `from` on.
void AppendToNames(Plan& plan, size_t from, absl::string_view graph) {
  for (size_t b = from; b < plan.buffers.size(); ++b) absl::StrAppend(&plan.buffers[b].name, graph);
}

absl::StatusOr<Plan> MakePlan(const Model& model, int world_size, PlanOptions options, const ModelUses& uses,
                              bool training) {
  Plan plan;
  plan.model = model;
  REPRISE_ASSIGN_OR_RETURN(plan.layout, LayOut(model, world_size));
  plan.axes = {{"data", world_size}};
  options.microbatches_per_graph = options.microbatches_per_graph.value_or(1);
  const int microbatches = *options.microbatches_per_graph;
  const int num_units = static_cast<int>(model.units().size());
  REPRISE_RETURN_IF_ERROR(CheckGraphSize(model, uses, plan.layout, microbatches, training));
  const SlotNeed need = WeightSlotNeed(uses);
  options.prefetch_depth = options.prefetch_depth.value_or(1);
  options.weight_slots = options.weight_slots.value_or(std::max(2, need.units));
  const internal::GradientPlan gradients = internal::PlanGradients(plan, options, uses);
  options.gradient_slots =
      options.gradient_slots.value_or(std::max(2, internal::GradientSlotNeed(gradients, uses, model)));
  // A graph has no more reduce buffers to put in them.
  options.gradient_slots = static_cast<int>(
      std::min<int64_t>(*options.gradient_slots, std::max<int64_t>(2, int64_t{num_units} * microbatches)));
  plan.options = options;
  ResolveUnits(plan);
  plan.dedicated_gradient_slots = gradients.dedicated_slots;
  if (*options.weight_slots < need.units) {
    return absl::ResourceExhaustedError(absl::StrCat("call \"", model.calls()[need.call].name, "\" needs ", need.units,
                                                     " gathered units at once, but weight_slots is ",
                                                     *options.weight_slots, "; raise weight_slots to ", need.units));
  }
  int gathered_units = 0;
  for (const UnitLayout& unit : plan.layout.units) gathered_units += unit.gathered_bytes > 0 ? 1 : 0;
  plan.weight_slots = std::min(*options.weight_slots, gathered_units);
  REPRISE_RETURN_IF_ERROR(internal::AddPersistentBuffers(plan, training));

  const std::vector<WeightAccess> accesses = Accesses(uses, microbatches, training);
  internal::CarriedState carried_state;
  const internal::GatherOptions gather_options = {.num_units = num_units,
                                                  .slots = plan.weight_slots,
                                                  .prefetch_depth = *options.prefetch_depth,
                                                  .residency = options.residency};
  const std::vector<StartResident> steady = SteadyResidents(accesses, gather_options);
  for (const StartResident& resident : steady) {
    carried_state.residents.push_back(
        {resident.unit, internal::AddGatheredBuffer(plan, resident.unit, "resident"), resident.slot});
  }
  if (options.tail == Tail::kCarried) AddCarried(plan, gradients, carried_state);
  const auto add_graph = [&](const char* name, internal::GraphStart start,
                             const std::vector<StartResident>& residents) {
    const GatherPlan gathers = internal::PlanGathers(accesses, residents, gather_options);
    return internal::PlanGraph(plan, name, {uses, gradients, gathers, carried_state, training, start});
  };
  const bool same = steady.empty() && carried_state.outstanding.empty() && options.reduce == Reduce::kEveryMicrobatch;
  size_t named = plan.buffers.size();
  REPRISE_RETURN_IF_ERROR(add_graph(same ? "body" : "first", internal::GraphStart::kEmpty, {}));
  if (!same) {
    AppendToNames(plan, named, ".first");
    named = plan.buffers.size();
    plan.body = 1;
    REPRISE_RETURN_IF_ERROR(add_graph("body", internal::GraphStart::kSteady, steady));
    AppendToNames(plan, named, ".body");
  }
  if (training) {
    named = plan.buffers.size();
    REPRISE_RETURN_IF_ERROR(internal::PlanFinish(plan, gradients, carried_state));
    AppendToNames(plan, named, ".finish");
    internal::PlanStep(plan);
  }
  REPRISE_RETURN_IF_ERROR(internal::PlaceBuffers(plan));
  plan.fingerprint = ComputeFingerprint(plan);
  return plan;
}

}  // namespace

absl::StatusOr<Plan> PlanTraining(const Model& model, int world_size, const PlanOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckOptions(options));
  REPRISE_ASSIGN_OR_RETURN(const ModelUses uses, internal::TrainingUses(model));
  return MakePlan(model, world_size, options, uses, /*training=*/true);
}

absl::StatusOr<Plan> PlanForward(const Model& model, int world_size, const PlanOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckOptions(options));
  PlanOptions forward = options;
  forward.reduce = Reduce::kEveryMicrobatch;
  forward.tail = Tail::kInGraph;
  return MakePlan(model, world_size, forward, internal::ForwardUses(model), /*training=*/false);
}

}  // namespace reprise
