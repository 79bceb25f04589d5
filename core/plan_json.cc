#include <string>
#include <utility>
#include <vector>

#include "core/plan_fields.h"
#include "nlohmann/json.hpp"
#include "reprise/core/plan.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

using Json = nlohmann::ordered_json;

std::string Text(absl::string_view text) { return std::string(text); }

template <class List, class Convert>
Json Array(const List& list, Convert convert) {
  Json array = Json::array();
  for (const auto& element : list) array.push_back(convert(element));
  return array;
}

void AddFields(const std::vector<internal::Field>& fields, Json& object) {
  for (const internal::Field& field : fields) {
    std::visit([&](const auto& value) { object[Text(field.name)] = value; }, field.value);
  }
}

Json OfSummary(const PlanSummary& summary, const Plan& plan) {
  return {{"world_size", plan.world_size()},
          {"microbatches", summary.microbatches},
          {"all_gathers", summary.all_gathers},
          {"reduce_scatters", summary.reduce_scatters},
          {"commands", summary.commands},
          {"waits", summary.waits},
          {"persistent_bytes", summary.persistent_bytes},
          {"transient_bytes", summary.transient_bytes},
          {"transient_lower_bound_bytes", summary.transient_lower_bound_bytes},
          {"fingerprint", summary.fingerprint.ToString()}};
}

Json OfOptions(const PlanOptions& options) {
  Json object = Json::object();
  AddFields(internal::FieldsOf(options), object);
  return object;
}

Json OfMemory(const MemoryPlan& memory) {
  Json array = Json::array();
  for (int s = 0; s < kNumStorages; ++s) {
    const Storage storage = static_cast<Storage>(s);
    Json& object = array.emplace_back(Json{{"storage", Text(Name(storage))}, {"num_bytes", memory.num_bytes[s]}});
    if (IsTransient(storage)) object["lower_bound"] = memory.lower_bound[s];
  }
  return array;
}

Json OfUnits(const Plan& plan) {
  Json array = Json::array();
  for (size_t u = 0; u < plan.layout.units.size(); ++u) {
    const UnitLayout& layout = plan.layout.units[u];
    Json groups = Array(layout.groups, [&](const FlatGroup& group) {
      Json parameters = Array(group.parameters, [&](const PlacedParameter& placed) -> Json {
        return {{"parameter", plan.model.parameter(placed.parameter).spec.name},
                {"first_element", placed.first_element},
                {"num_elements", placed.num_elements}};
      });
      return Json{{"dtype", Text(Name(group.dtype))},       {"wire", Text(Name(plan.wire(group)))},
                  {"trainable", group.trainable},           {"num_elements", group.num_elements},
                  {"shard_elements", group.shard_elements}, {"parameters", std::move(parameters)}};
    });
    array.push_back({{"unit", internal::UnitName(plan, UnitId(static_cast<int64_t>(u)))},
                     {"gathered_bytes", layout.gathered_bytes},
                     {"groups", std::move(groups)}});
  }
  return array;
}

Json OfBuffer(const Buffer& buffer) {
  return {{"name", buffer.name},
          {"storage", Text(Name(buffer.storage))},
          {"offset", buffer.offset},
          {"num_bytes", buffer.num_bytes}};
}

Json OfUse(const BufferUse& use) {
  return {{"access", Text(Name(use.access))}, {"role", Text(Name(use.role))}, {"id", use.id},
          {"buffer", use.buffer.value()},     {"offset", use.offset},         {"num_bytes", use.num_bytes}};
}

Json OfWait(const Wait& wait) { return {{"command", wait.command.value()}, {"reason", Text(Name(wait.reason))}}; }

Json OfCommand(const Plan& plan, const ScheduledCommand& scheduled, size_t id) {
  internal::CommandFields fields = internal::FieldsOf(plan, scheduled.command);
  Json object = {{"id", id}, {"kind", Text(fields.kind)}};
  AddFields(fields.fields, object);
  object["lane"] = Text(Name(scheduled.lane));
  object["waits"] = Array(scheduled.waits, OfWait);
  object["uses"] = Array(scheduled.uses, OfUse);
  return object;
}

Json OfState(const Plan& plan, const ScheduleState& state) {
  Json residents = Array(state.residents, [&](const Resident& resident) -> Json {
    return {{"unit", internal::UnitName(plan, resident.unit)},
            {"slot", resident.slot},
            {"buffer", resident.buffer.value()}};
  });
  Json outstanding = Array(state.outstanding, [&](const OutstandingReduction& reduction) -> Json {
    return {{"unit", internal::UnitName(plan, reduction.unit)},
            {"slot", reduction.slot},
            {"buffer", reduction.wire.value()}};
  });
  return {{"residents", std::move(residents)}, {"outstanding", std::move(outstanding)}, {"gradients", state.gradients}};
}

Json OfSchedule(const Plan& plan, const Schedule& schedule) {
  Json commands = Json::array();
  for (size_t c = 0; c < schedule.commands.size(); ++c) commands.push_back(OfCommand(plan, schedule.commands[c], c));
  return {{"name", schedule.name},
          {"microbatches", schedule.microbatches},
          {"start", OfState(plan, schedule.start)},
          {"end", OfState(plan, schedule.end)},
          {"commands", std::move(commands)}};
}

// One line per value that holds no list or object, and per value below `levels`: a command is one line.
void Print(const Json& json, int levels, int indent, std::string& out) {
  bool nested = false;
  for (const Json& element : json) nested = nested || element.is_structured();
  if (!nested || levels == 0) {
    // A name that is not UTF-8 must not throw.
    out += json.dump(-1, ' ', false, Json::error_handler_t::replace);
    return;
  }
  out.push_back(json.is_object() ? '{' : '[');
  const char* separator = "\n";
  for (auto it = json.begin(); it != json.end(); ++it) {
    out += std::exchange(separator, ",\n");
    out.append(indent + 1, ' ');
    if (json.is_object()) out += "\"" + it.key() + "\": ";
    Print(*it, levels - 1, indent + 1, out);
  }
  out.push_back('\n');
  out.append(indent, ' ');
  out.push_back(json.is_object() ? '}' : ']');
}

}  // namespace

absl::StatusOr<std::string> ToJson(const Plan& plan, int microbatches) {
  REPRISE_ASSIGN_OR_RETURN(const PlanSummary summary, Summarize(plan, microbatches));
  const Json json = {
      {"summary", OfSummary(summary, plan)},
      {"options", OfOptions(plan.options)},
      {"weight_slots", plan.weight_slots},
      {"held_gradient_slots", plan.held_gradient_slots},
      {"axes", Array(plan.axes,
                     [](const Axis& axis) -> Json {
                       return {{"name", axis.name}, {"size", axis.size}};
                     })},
      {"units", OfUnits(plan)},
      {"memory", OfMemory(plan.memory)},
      {"buffers", Array(plan.buffers, OfBuffer)},
      {"first", plan.first},
      {"body", plan.body},
      {"finish", plan.finish},
      {"step", plan.step},
      {"schedules", Array(plan.schedules, [&](const Schedule& schedule) { return OfSchedule(plan, schedule); })}};
  std::string out;
  Print(json, /*levels=*/4, /*indent=*/0, out);
  out.push_back('\n');
  return out;
}

}  // namespace reprise
