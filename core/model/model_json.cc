// The model file format, described in core/README.md.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/model/json_reader.h"
#include "core/model/json_text.h"
#include "core/model/quoted.h"
#include "nlohmann/json.hpp"
#include "reprise/core/model.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

using internal::Into;
using internal::JsonList;
using internal::JsonMistake;
using internal::JsonReader;
using internal::Presence;
using internal::Quoted;
using internal::ReadJsonObject;
using nlohmann::json;
using nlohmann::ordered_json;

// ---- writing ----

template <class Id, class NameOf>
void PutNames(ordered_json& object, const char* key, const std::vector<Id>& ids, NameOf name_of) {
  if (ids.empty()) return;
  ordered_json& list = object[key] = ordered_json::array();
  for (Id id : ids) list.push_back(name_of(id));
}

// One entry per line, so that files compare well.
void AppendList(std::string& text, absl::string_view key, const std::vector<ordered_json>& entries) {
  absl::StrAppend(&text, text.size() > 1 ? ",\n" : "\n", "  \"", key, "\": [");
  absl::StrAppend(&text, absl::StrJoin(entries, ",", [](std::string* out, const ordered_json& entry) {
    absl::StrAppend(out, "\n    ", entry.dump());
  }));
  absl::StrAppend(&text, entries.empty() ? "]" : "\n  ]");
}

ordered_json ToEntry(const Model& model, const Parameter& parameter) {
  const ParameterSpec& spec = parameter.spec;
  ordered_json entry = {{"unit", model.unit(parameter.unit).name},
                        {"name", spec.name},
                        {"shape", spec.shape},
                        {"dtype", std::string(Name(spec.dtype))}};
  if (!spec.trainable) entry["trainable"] = false;
  if (spec.reduce_dtype) entry["reduce_dtype"] = std::string(Name(*spec.reduce_dtype));
  if (parameter.allow_unused) entry["allow_unused"] = true;
  return entry;
}

ordered_json ToEntry(const Tensor& tensor) {
  ordered_json entry = {{"name", tensor.spec.name},
                        {"kind", std::string(Name(tensor.kind))},
                        {"shape", tensor.spec.shape},
                        {"dtype", std::string(Name(tensor.spec.dtype))}};
  if (tensor.spec.external) entry["external"] = true;
  if (tensor.keep_gradient) entry["keep_gradient"] = true;
  return entry;
}

ordered_json ToEntry(const Model& model, const CallSpec& call) {
  const auto unit = [&](UnitId id) { return model.unit(id).name; };
  const auto parameter = [&](ParameterId id) { return model.parameter(id).spec.name; };
  const auto tensor = [&](TensorId id) { return model.tensor(id).spec.name; };
  ordered_json entry = {{"name", call.name}};
  PutNames(entry, "units", call.units, unit);
  PutNames(entry, "parameters", call.parameters, parameter);
  PutNames(entry, "inputs", call.inputs, tensor);
  PutNames(entry, "outputs", call.outputs, tensor);
  PutNames(entry, "saved", call.saved, tensor);
  PutNames(entry, "state", call.state, tensor);
  PutNames(entry, "forward_only_units", call.forward_only_units, unit);
  if (call.scratch_bytes > 0) entry["scratch_bytes"] = call.scratch_bytes;
  if (call.recompute) entry["recompute"] = true;
  return entry;
}

// ---- reading ----

JsonReader Into(Shape* out) {
  return JsonList([out](const json& value, const std::string& place) {
    out->push_back(0);
    return internal::Into(&out->back())(value, place);
  });
}

// DType or std::optional<DType>.
template <class T>
JsonReader IntoDType(T* out) {
  return [out](const json& value, const std::string& place) -> absl::Status {
    std::string name;
    REPRISE_RETURN_IF_ERROR(Into(&name)(value, place));
    const absl::StatusOr<DType> dtype = ParseDType(name);
    if (!dtype.ok()) return JsonMistake(place, std::string(dtype.status().message()));
    *out = *dtype;
    return absl::OkStatus();
  };
}

JsonReader Into(TensorKind* out) {
  return [out](const json& value, const std::string& place) -> absl::Status {
    std::string name;
    REPRISE_RETURN_IF_ERROR(Into(&name)(value, place));
    for (TensorKind kind : {TensorKind::kInput, TensorKind::kActivation, TensorKind::kOutput, TensorKind::kState}) {
      if (Name(kind) != name) continue;
      *out = kind;
      return absl::OkStatus();
    }
    return JsonMistake(place, absl::StrCat("unknown kind ", Quoted(name),
                                           "; use one of \"input\", \"activation\", \"output\", \"state\""));
  };
}

// The ids of one kind of thing by name.
template <class Id>
class NameTable {
 public:
  explicit NameTable(absl::string_view what) : what_(what) {}

  // `place` is of the entry that has the name.
  absl::Status Add(const std::string& name, Id id, const std::string& place) {
    const auto [entry, added] = ids_.emplace(name, id);
    if (added) return absl::OkStatus();
    return JsonMistake(absl::StrCat(place, ".name"),
                       absl::StrCat(Quoted(name), " is already the name of ", what_, " ", entry->second.value(),
                                    "; names of ", what_, "s must differ"));
  }

  JsonReader Into(Id* out) const {
    return [this, out](const json& value, const std::string& place) -> absl::Status {
      std::string name;
      REPRISE_RETURN_IF_ERROR(internal::Into(&name)(value, place));
      const auto found = ids_.find(name);
      if (found == ids_.end()) {
        return JsonMistake(place,
                           absl::StrCat("there is no ", what_, " ", Quoted(name), "; list it in \"", what_, "s\""));
      }
      *out = found->second;
      return absl::OkStatus();
    };
  }
  JsonReader Into(std::vector<Id>* out) const {
    return JsonList([this, out](const json& value, const std::string& place) {
      out->emplace_back();
      return Into(&out->back())(value, place);
    });
  }

 private:
  const absl::string_view what_;
  std::map<std::string, Id> ids_;
};

class ModelReader {
 public:
  absl::StatusOr<Model> Read(const json& value) {
    // In this order: what is named comes before what names it.
    REPRISE_RETURN_IF_ERROR(
        ReadJsonObject(value, "",
                       {{"units", Presence::kOptional, EachEntry(&ModelReader::ReadUnit)},
                        {"parameters", Presence::kOptional, EachEntry(&ModelReader::ReadParameter)},
                        {"tensors", Presence::kOptional, EachEntry(&ModelReader::ReadTensor)},
                        {"calls", Presence::kOptional, EachEntry(&ModelReader::ReadCall)},
                        {"loss", Presence::kOptional,
                         [this](const json& loss, const std::string& place) { return ReadLoss(loss, place); }}}));
    return builder_.Build();
  }

 private:
  JsonReader EachEntry(absl::Status (ModelReader::*read)(const json&, const std::string&)) {
    return JsonList([this, read](const json& value, const std::string& place) { return (this->*read)(value, place); });
  }

  absl::Status ReadUnit(const json& value, const std::string& place) {
    std::string name;
    REPRISE_RETURN_IF_ERROR(ReadJsonObject(value, place, {{"name", Presence::kRequired, Into(&name)}}));
    return units_.Add(name, builder_.AddUnit(name), place);
  }

  absl::Status ReadParameter(const json& value, const std::string& place) {
    UnitId unit;
    ParameterSpec spec;
    bool allow_unused = false;
    REPRISE_RETURN_IF_ERROR(ReadJsonObject(value, place,
                                           {{"unit", Presence::kRequired, units_.Into(&unit)},
                                            {"name", Presence::kRequired, Into(&spec.name)},
                                            {"shape", Presence::kOptional, Into(&spec.shape)},
                                            {"dtype", Presence::kOptional, IntoDType(&spec.dtype)},
                                            {"trainable", Presence::kOptional, Into(&spec.trainable)},
                                            {"reduce_dtype", Presence::kOptional, IntoDType(&spec.reduce_dtype)},
                                            {"allow_unused", Presence::kOptional, Into(&allow_unused)}}));
    const std::string name = spec.name;
    const ParameterId id = builder_.AddParameter(unit, std::move(spec));
    if (allow_unused) builder_.AllowUnused(id);
    return parameters_.Add(name, id, place);
  }

  absl::Status ReadTensor(const json& value, const std::string& place) {
    TensorSpec spec;
    TensorKind kind = TensorKind::kActivation;
    bool keep_gradient = false;
    REPRISE_RETURN_IF_ERROR(ReadJsonObject(value, place,
                                           {{"name", Presence::kRequired, Into(&spec.name)},
                                            {"kind", Presence::kRequired, Into(&kind)},
                                            {"shape", Presence::kOptional, Into(&spec.shape)},
                                            {"dtype", Presence::kOptional, IntoDType(&spec.dtype)},
                                            {"external", Presence::kOptional, Into(&spec.external)},
                                            {"keep_gradient", Presence::kOptional, Into(&keep_gradient)}}));
    const std::string name = spec.name;
    const TensorId id = AddTensor(kind, std::move(spec));
    if (keep_gradient) builder_.KeepGradient(id);
    return tensors_.Add(name, id, place);
  }

  TensorId AddTensor(TensorKind kind, TensorSpec spec) {
    switch (kind) {
      case TensorKind::kInput:
        return builder_.AddInput(std::move(spec));
      case TensorKind::kActivation:
        return builder_.AddActivation(std::move(spec));
      case TensorKind::kOutput:
        return builder_.AddOutput(std::move(spec));
      case TensorKind::kState:
        return builder_.AddState(std::move(spec));
    }
    return TensorId();
  }

  absl::Status ReadCall(const json& value, const std::string& place) {
    CallSpec spec;
    REPRISE_RETURN_IF_ERROR(
        ReadJsonObject(value, place,
                       {{"name", Presence::kRequired, Into(&spec.name)},
                        {"units", Presence::kOptional, units_.Into(&spec.units)},
                        {"parameters", Presence::kOptional, parameters_.Into(&spec.parameters)},
                        {"inputs", Presence::kOptional, tensors_.Into(&spec.inputs)},
                        {"outputs", Presence::kOptional, tensors_.Into(&spec.outputs)},
                        {"saved", Presence::kOptional, tensors_.Into(&spec.saved)},
                        {"state", Presence::kOptional, tensors_.Into(&spec.state)},
                        {"forward_only_units", Presence::kOptional, units_.Into(&spec.forward_only_units)},
                        {"scratch_bytes", Presence::kOptional, Into(&spec.scratch_bytes)},
                        {"recompute", Presence::kOptional, Into(&spec.recompute)}}));
    const std::string name = spec.name;
    return calls_.Add(name, builder_.AddCall(std::move(spec)), place);
  }

  absl::Status ReadLoss(const json& value, const std::string& place) {
    TensorId loss;
    REPRISE_RETURN_IF_ERROR(tensors_.Into(&loss)(value, place));
    builder_.SetLoss(loss);
    return absl::OkStatus();
  }

  ModelBuilder builder_;
  NameTable<UnitId> units_{"unit"};
  NameTable<ParameterId> parameters_{"parameter"};
  NameTable<TensorId> tensors_{"tensor"};
  NameTable<CallId> calls_{"call"};
};

}  // namespace

std::string Model::ToJson() const {
  std::vector<ordered_json> unit_entries, parameter_entries, tensor_entries, call_entries;
  for (const Unit& unit : units_) unit_entries.push_back({{"name", unit.name}});
  for (const Parameter& parameter : parameters_) parameter_entries.push_back(ToEntry(*this, parameter));
  for (const Tensor& tensor : tensors_) tensor_entries.push_back(ToEntry(tensor));
  for (const CallSpec& call : calls_) call_entries.push_back(ToEntry(*this, call));
  std::string text = "{";
  AppendList(text, "units", unit_entries);
  AppendList(text, "parameters", parameter_entries);
  AppendList(text, "tensors", tensor_entries);
  AppendList(text, "calls", call_entries);
  if (loss_.valid()) absl::StrAppend(&text, ",\n  \"loss\": ", ordered_json(tensor(loss_).spec.name).dump());
  return text + "\n}\n";
}

absl::StatusOr<Model> Model::FromJson(absl::string_view text) {
  REPRISE_ASSIGN_OR_RETURN(const json value, internal::ParseJson(text));
  return ModelReader().Read(value);
}

}  // namespace reprise
