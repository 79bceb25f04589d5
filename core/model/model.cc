#include "reprise/core/model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/model/model_validation.h"
#include "core/model/quoted.h"
#include "core/plan/plan_facts.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

using internal::Quoted;

// Insertions, deletions and replacements of bytes that make `a` into `b`.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

const std::string& NameOf(const Unit& unit) { return unit.name; }
const std::string& NameOf(const CallSpec& call) { return call.name; }
const std::string& NameOf(const Parameter& parameter) { return parameter.spec.name; }
const std::string& NameOf(const Tensor& tensor) { return tensor.spec.name; }

// The id of the one of `items` that is called `name`; `what` is its kind, for the message.
template <class Id, class T>
absl::StatusOr<Id> Find(const std::vector<T>& items, absl::string_view name, absl::string_view what) {
  const auto found = std::find_if(items.begin(), items.end(), [&](const T& item) { return NameOf(item) == name; });
  if (found != items.end()) return Id(static_cast<int64_t>(found - items.begin()));
  if (items.empty()) {
    return absl::NotFoundError(absl::StrCat("no ", what, " ", Quoted(name), ": the model has no ", what, "s"));
  }
  const absl::string_view compared = name.substr(0, internal::kMaxNameBytes);
  const auto closest = std::min_element(items.begin(), items.end(), [&](const T& a, const T& b) {
    return EditDistance(compared, NameOf(a)) < EditDistance(compared, NameOf(b));
  });
  return absl::NotFoundError(absl::StrCat("no ", what, " ", Quoted(name), " among the model's ", items.size(), " ",
                                          what, "s; did you mean ", Quoted(NameOf(*closest)), "?"));
}

std::string TypeText(DType dtype, const Shape& shape) {
  return absl::StrCat(Name(dtype), "[", absl::StrJoin(shape, ","), "]");
}

// "; saved: x, y", or nothing for an empty list.
template <class Id, class NameOf>
std::string ListText(absl::string_view word, const std::vector<Id>& ids, NameOf name_of) {
  if (ids.empty()) return "";
  return absl::StrCat("; ", word, ": ",
                      absl::StrJoin(ids, ", ", [&](std::string* out, Id id) { absl::StrAppend(out, name_of(id)); }));
}

template <class Id, class T>
bool Known(Id id, const std::vector<T>& items) {
  return id.valid() && static_cast<size_t>(id.value()) < items.size();
}

}  // namespace

int64_t NumElements(absl::Span<const int64_t> shape) {
  // An empty tensor's other extents are not multiplied: their product may be large.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

absl::StatusOr<UnitId> Model::FindUnit(absl::string_view name) const { return Find<UnitId>(units_, name, "unit"); }
absl::StatusOr<CallId> Model::FindCall(absl::string_view name) const { return Find<CallId>(calls_, name, "call"); }
absl::StatusOr<ParameterId> Model::FindParameter(absl::string_view name) const {
  return Find<ParameterId>(parameters_, name, "parameter");
}
absl::StatusOr<TensorId> Model::FindTensor(absl::string_view name) const {
  return Find<TensorId>(tensors_, name, "tensor");
}

std::vector<internal::ModelLine> internal::LinesOf(const Model& model) {
  const auto unit_name = [&](UnitId id) { return model.unit(id).name; };
  const auto parameter_name = [&](ParameterId id) { return model.parameter(id).spec.name; };
  const auto tensor_name = [&](TensorId id) { return model.tensor(id).spec.name; };
  std::vector<ModelLine> lines;
  for (const Unit& u : model.units()) {
    lines.push_back({"unit", u.name, ListText("parameters", u.parameters, parameter_name)});
  }
  for (const Parameter& p : model.parameters()) {
    lines.push_back({"parameter", p.spec.name,
                     absl::StrCat(" ", TypeText(p.spec.dtype, p.spec.shape), " of ", unit_name(p.unit),
                                  p.spec.trainable ? "" : " frozen",
                                  p.spec.reduce_dtype ? absl::StrCat(" reduce_dtype ", Name(*p.spec.reduce_dtype)) : "",
                                  p.allow_unused ? " allow_unused" : "")});
  }
  for (const Tensor& t : model.tensors()) {
    lines.push_back({Name(t.kind), t.spec.name,
                     absl::StrCat(" ", TypeText(t.spec.dtype, t.spec.shape), t.spec.external ? " external" : "",
                                  t.keep_gradient ? " keep_gradient" : "")});
  }
  for (const CallSpec& c : model.calls()) {
    lines.push_back(
        {"call", c.name,
         absl::StrCat(ListText("units", c.units, unit_name), ListText("parameters", c.parameters, parameter_name),
                      ListText("inputs", c.inputs, tensor_name), ListText("outputs", c.outputs, tensor_name),
                      ListText("saved", c.saved, tensor_name), ListText("state", c.state, tensor_name),
                      ListText("forward_only_units", c.forward_only_units, unit_name),
                      c.scratch_bytes > 0 ? absl::StrCat("; scratch_bytes: ", c.scratch_bytes) : "",
                      c.recompute ? "; recompute" : "")});
  }
  if (model.loss().valid()) lines.push_back({"loss", tensor_name(model.loss()), ""});
  return lines;
}

std::string Model::ToString() const {
  std::string text;
  for (const internal::ModelLine& line : internal::LinesOf(*this)) {
    absl::StrAppend(&text, line.kind, " ", line.name, line.rest, "\n");
  }
  return text;
}

UnitId ModelBuilder::AddUnit(std::string name) {
  model_.units_.push_back({.name = std::move(name), .parameters = {}});
  return UnitId(static_cast<int64_t>(model_.units_.size()) - 1);
}

ParameterId ModelBuilder::AddParameter(UnitId unit, ParameterSpec spec) {
  const ParameterId id(static_cast<int64_t>(model_.parameters_.size()));
  if (Known(unit, model_.units_)) {
    model_.units_[unit.value()].parameters.push_back(id);
  } else {
    mistakes_.push_back(absl::StrCat("parameter ", Quoted(spec.name), " is added to unit id ", unit.value(),
                                     ", and the model has ", model_.units_.size(),
                                     " units so far; use an id that AddUnit returned"));
  }
  model_.parameters_.push_back({.spec = std::move(spec), .unit = unit});
  return id;
}

TensorId ModelBuilder::AddTensor(TensorSpec spec, TensorKind kind) {
  model_.tensors_.push_back({.spec = std::move(spec), .kind = kind});
  return TensorId(static_cast<int64_t>(model_.tensors_.size()) - 1);
}

TensorId ModelBuilder::AddInput(TensorSpec spec) { return AddTensor(std::move(spec), TensorKind::kInput); }
TensorId ModelBuilder::AddActivation(TensorSpec spec) { return AddTensor(std::move(spec), TensorKind::kActivation); }
TensorId ModelBuilder::AddOutput(TensorSpec spec) { return AddTensor(std::move(spec), TensorKind::kOutput); }
TensorId ModelBuilder::AddState(TensorSpec spec) { return AddTensor(std::move(spec), TensorKind::kState); }

CallId ModelBuilder::AddCall(CallSpec spec) {
  model_.calls_.push_back(std::move(spec));
  return CallId(static_cast<int64_t>(model_.calls_.size()) - 1);
}

void ModelBuilder::SetLoss(TensorId scalar_output) {
  if (Known(scalar_output, model_.tensors_)) {
    model_.loss_ = scalar_output;
  } else {
    mistakes_.push_back(absl::StrCat("SetLoss of tensor id ", scalar_output.value(), ", and the model has ",
                                     model_.tensors_.size(), " tensors so far; use an id that AddOutput returned"));
  }
}

void ModelBuilder::KeepGradient(TensorId input) {
  if (Known(input, model_.tensors_)) {
    model_.tensors_[input.value()].keep_gradient = true;
  } else {
    mistakes_.push_back(absl::StrCat("KeepGradient of tensor id ", input.value(), ", and the model has ",
                                     model_.tensors_.size(), " tensors so far; use an id that AddInput returned"));
  }
}

void ModelBuilder::AllowUnused(ParameterId parameter) {
  if (Known(parameter, model_.parameters_)) {
    model_.parameters_[parameter.value()].allow_unused = true;
  } else {
    mistakes_.push_back(absl::StrCat("AllowUnused of parameter id ", parameter.value(), ", and the model has ",
                                     model_.parameters_.size(),
                                     " parameters so far; use an id that AddParameter returned"));
  }
}

absl::StatusOr<Model> ModelBuilder::Build() const {
  if (!mistakes_.empty()) return absl::InvalidArgumentError(mistakes_.front());
  REPRISE_RETURN_IF_ERROR(internal::ValidateModel(model_));
  return model_;
}

}  // namespace reprise
