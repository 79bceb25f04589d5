#include "core/plan/plan_fields.h"

#include <optional>

#include "absl/strings/str_cat.h"

namespace reprise::internal {

absl::string_view Word(Residency residency) {
  switch (residency) {
    case Residency::kKeep:
      return "on";
    case Residency::kOff:
      return "off";
  }
  return "?";
}
absl::string_view Word(Reduce reduce) {
  switch (reduce) {
    case Reduce::kEveryMicrobatch:
      return "each";
    case Reduce::kOncePerStep:
      return "last";
  }
  return "?";
}
absl::string_view Word(Tail tail) {
  switch (tail) {
    case Tail::kInGraph:
      return "graph";
    case Tail::kCarried:
      return "carried";
  }
  return "?";
}

namespace {

absl::string_view Word(AccumulateMode mode) {
  switch (mode) {
    case AccumulateMode::kByMicrobatch:
      return "by_microbatch";
    case AccumulateMode::kAlwaysAssign:
      return "assign";
  }
  return "?";
}

template <class List, class IdType>
std::string NameIn(const List& list, IdType id, absl::string_view kind) {
  if (!id.valid() || static_cast<size_t>(id.value()) >= list.size()) return absl::StrCat(kind, "#", id.value());
  return list[id.value()].name;
}

Field OfText(absl::string_view name, absl::string_view value) { return {name, std::string(value)}; }
Field OfNumber(absl::string_view name, int64_t value) { return {name, value}; }
Field OfOptional(absl::string_view name, std::optional<int> value) {
  return value.has_value() ? OfNumber(name, *value) : OfText(name, "unset");
}

}  // namespace

std::string UnitName(const Plan& plan, UnitId id) { return NameIn(plan.model.units(), id, "unit"); }
std::string CallName(const Plan& plan, CallId id) { return NameIn(plan.model.calls(), id, "call"); }

std::string ParameterName(const Plan& plan, ParameterId id) {
  if (!id.valid() || static_cast<size_t>(id.value()) >= plan.model.parameters().size()) {
    return absl::StrCat("parameter#", id.value());
  }
  return plan.model.parameter(id).spec.name;
}

CommandFields FieldsOf(const Plan& plan, const Command& command) {
  const auto unit = [&](UnitId id) { return OfText("unit", UnitName(plan, id)); };
  const auto call = [&](CallId id) { return OfText("call", CallName(plan, id)); };
  const auto axis = [&](AxisId id) { return OfText("axis", NameIn(plan.axes, id, "axis")); };
  const auto microbatch = [](int position) { return OfNumber("microbatch", position); };
  const auto transport = [](Transport value) { return OfText("transport", Name(value)); };
  const auto sum = [](Sum value) { return OfText("sum", Name(value)); };
  return std::visit(
      Overloaded{
          [](const Begin&) { return CommandFields{"begin"}; },
          [](const NextMicrobatch& c) {
            return CommandFields{"next_microbatch", {OfNumber("count", c.count)}};
          },
          [&](const StageInputs& c) {
            return CommandFields{"stage_inputs", {microbatch(c.position), OfNumber("slots", c.slots)}};
          },
          [&](const AllGather& c) {
            return CommandFields{"all_gather",
                                 {unit(c.unit), OfNumber("slot", c.slot), transport(c.transport), axis(c.axis)}};
          },
          [&](const Forward& c) {
            return CommandFields{"forward", {call(c.call), microbatch(c.position), {"recompute", c.recompute}}};
          },
          [&](const Backward& c) {
            return CommandFields{"backward", {call(c.call), microbatch(c.position)}};
          },
          [&](const PackGradients& c) {
            return CommandFields{"pack_gradients", {unit(c.unit), microbatch(c.position)}};
          },
          [&](const ReduceScatter& c) {
            CommandFields fields{"reduce_scatter", {unit(c.unit), microbatch(c.position)}};
            if (c.slot >= 0) fields.fields.push_back(OfNumber("slot", c.slot));
            fields.fields.insert(fields.fields.end(), {transport(c.transport), sum(c.sum), axis(c.axis)});
            return fields;
          },
          [&](const Accumulate& c) {
            return CommandFields{"accumulate",
                                 {unit(c.unit),
                                  microbatch(c.position),
                                  sum(c.sum),
                                  OfText("mode", Word(c.mode)),
                                  {"beside_compute", c.beside_compute}}};
          },
          [&](const RecordLoss& c) {
            return CommandFields{"record_loss", {microbatch(c.position)}};
          },
          [&](const SumNorm& c) {
            return CommandFields{"sum_norm", {axis(c.axis)}};
          },
          [&](const UpdateParameters& c) {
            return CommandFields{"update_parameters", {unit(c.unit)}};
          },
          [&](const RefreshShards& c) {
            return CommandFields{"refresh_shards", {unit(c.unit)}};
          },
          [](const PublishMetrics&) { return CommandFields{"publish_metrics"}; },
          [](const End&) { return CommandFields{"end"}; },
      },
      command);
}

std::vector<Field> FieldsOf(const PlanOptions& options) {
  const auto& [prefetch_depth, weight_slots, gradient_slots, microbatches_per_graph, residency, reduce, tail,
               transports, sum, reduce_dtype, accumulate, master, optimizer_states] = options;
  return {OfOptional("prefetch_depth", prefetch_depth),
          OfOptional("weight_slots", weight_slots),
          OfOptional("gradient_slots", gradient_slots),
          OfOptional("microbatches_per_graph", microbatches_per_graph),
          OfText("residency", Word(residency)),
          OfText("reduce", Word(reduce)),
          OfText("tail", Word(tail)),
          OfText("transports", ToText(transports)),
          OfText("sum", sum.has_value() ? Name(*sum) : "unset"),
          OfText("reduce_dtype", Name(reduce_dtype)),
          OfText("accumulate", Name(accumulate)),
          OfText("master", Name(master)),
          OfNumber("optimizer_states", optimizer_states)};
}

}  // namespace reprise::internal
