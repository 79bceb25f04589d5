#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/plan/plan_fields.h"
#include "nlohmann/json.hpp"
#include "reprise/core/plan.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

using Json = nlohmann::ordered_json;

std::string Text(absl::string_view text) { return std::string(text); }

// On one line. A name that is not UTF-8 must not throw.
std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

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
        return {{"parameter", internal::ParameterName(plan, placed.parameter)},
                {"first_element", placed.first_element},
                {"num_elements", placed.num_elements}};
      });
      return Json{{"dtype", Text(Name(group.dtype))},       {"reduce_dtype", Text(Name(plan.reduce_dtype(group)))},
                  {"trainable", group.trainable},           {"num_elements", group.num_elements},
                  {"shard_elements", group.shard_elements}, {"parameters", std::move(parameters)}};
    });
    const UnitPolicy policy = u < plan.unit_policies.size() ? plan.unit_policies[u] : UnitPolicy();
    array.push_back({{"unit", internal::UnitName(plan, UnitId(static_cast<int64_t>(u)))},
                     {"gather", Text(Name(policy.transports.gather))},
                     {"exchange", Text(Name(policy.transports.exchange))},
                     {"sum", Text(Name(policy.sum))},
                     {"gathered_bytes", layout.gathered_bytes},
                     {"groups", std::move(groups)}});
  }
  return array;
}

Json OfAxis(const Axis& axis) { return {{"name", axis.name}, {"size", axis.size}}; }

Json OfBuffer(const Buffer& buffer) {
  return {{"name", buffer.name},
          {"storage", Text(Name(buffer.storage))},
          {"offset", buffer.offset},
          {"num_bytes", buffer.num_bytes}};
}

// Commands, waits and uses are most of a plan, and a Json object for each would take most of the time; none of the
// words here needs an escape.
void AppendUse(const BufferUse& use, std::string& out) {
  absl::StrAppend(&out, "{\"access\":\"", Name(use.access), "\",\"role\":\"", Name(use.role), "\",\"id\":", use.id);
  absl::StrAppend(&out, ",\"buffer\":", use.buffer.value(), ",\"offset\":", use.offset,
                  ",\"num_bytes\":", use.num_bytes, use.is_own() ? "}" : ",\"peers\":true}");
}

void AppendWait(const Wait& wait, std::string& out) {
  absl::StrAppend(&out, "{\"command\":", wait.command.value(), ",\"reason\":\"", Name(wait.reason), "\"}");
}

template <class T>
void AppendArray(absl::string_view key, const std::vector<T>& list, void (*append)(const T&, std::string&),
                 std::string& out) {
  absl::StrAppend(&out, ",\"", key, "\":[");
  const char* separator = "";
  for (const T& element : list) {
    out += std::exchange(separator, ",");
    append(element, out);
  }
  out.push_back(']');
}

void AppendCommand(const Plan& plan, const ScheduledCommand& scheduled, size_t id, std::string& out) {
  internal::CommandFields fields = internal::FieldsOf(plan, scheduled.command);
  Json object = {{"id", id}, {"kind", Text(fields.kind)}};
  AddFields(fields.fields, object);
  object["lane"] = Text(Name(scheduled.lane));
  out += Dump(object);
  out.pop_back();
  AppendArray("waits", scheduled.waits, AppendWait, out);
  AppendArray("uses", scheduled.uses, AppendUse, out);
  out.push_back('}');
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
            {"buffer", reduction.buffer.value()}};
  });
  return {{"residents", std::move(residents)}, {"outstanding", std::move(outstanding)}, {"gradients", state.gradients}};
}

void AppendSchedule(const Plan& plan, const Schedule& schedule, std::string& out) {
  const Json head = {{"name", schedule.name},
                     {"microbatches", schedule.microbatches},
                     {"start", OfState(plan, schedule.start)},
                     {"end", OfState(plan, schedule.end)}};
  out += Dump(head);
  out.pop_back();
  out += ",\"commands\":[";
  const char* separator = "\n";
  for (size_t c = 0; c < schedule.commands.size(); ++c) {
    absl::StrAppend(&out, std::exchange(separator, ",\n"), "   ");
    AppendCommand(plan, schedule.commands[c], c, out);
  }
  out += "\n  ]}";
}

// Appends a member of the outermost object; the elements of a list get a line each.
void AppendMember(absl::string_view key, const Json& value, std::string& out) {
  absl::StrAppend(&out, out.empty() ? "{\n" : ",\n", " \"", key, "\": ");
  if (!value.is_array()) {
    out += Dump(value);
    return;
  }
  const char* separator = "[\n";
  for (const Json& element : value) absl::StrAppend(&out, std::exchange(separator, ",\n"), "  ", Dump(element));
  out += value.empty() ? "[]" : "\n ]";
}

}  // namespace

absl::StatusOr<std::string> ToJson(const Plan& plan, int microbatches) {
  REPRISE_ASSIGN_OR_RETURN(const PlanSummary summary, Summarize(plan, microbatches));
  std::string out;
  AppendMember("summary", OfSummary(summary, plan), out);
  AppendMember("options", OfOptions(plan.options), out);
  AppendMember("weight_slots", plan.weight_slots, out);
  AppendMember("dedicated_gradient_slots", plan.dedicated_gradient_slots, out);
  AppendMember("axes", Array(plan.axes, OfAxis), out);
  AppendMember("units", OfUnits(plan), out);
  AppendMember("memory", OfMemory(plan.memory), out);
  AppendMember("buffers", Array(plan.buffers, OfBuffer), out);
  AppendMember("first", plan.first, out);
  AppendMember("body", plan.body, out);
  AppendMember("finish", plan.finish, out);
  AppendMember("step", plan.step, out);
  out += ",\n \"schedules\": [";
  const char* separator = "\n";
  for (const Schedule& schedule : plan.schedules) {
    absl::StrAppend(&out, std::exchange(separator, ",\n"), "  ");
    AppendSchedule(plan, schedule, out);
  }
  out += "\n ]\n}\n";
  return out;
}

}  // namespace reprise
