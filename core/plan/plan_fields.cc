#include "core/plan/plan_fields.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace reprise::internal {

namespace {

absl::string_view Word(AccumulateMode mode) {
  switch (mode) {
    case AccumulateMode::kByMicrobatch:
      return "by_microbatch";
    case AccumulateMode::kAlwaysAssign:
      return "always_assign";
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
  std::vector<Field> fields;
  for (const PlanOptionText& option : PlanOptionTexts()) {
    const std::string text = option.get(options);
    int64_t number = 0;
    fields.push_back(absl::SimpleAtoi(text, &number) ? OfNumber(option.name, number) : OfText(option.name, text));
  }
  return fields;
}

}  // namespace reprise::internal
