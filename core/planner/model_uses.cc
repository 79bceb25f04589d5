#include "core/planner/model_uses.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

bool HasElements(const Model& model, UnitId unit) {
  const std::vector<ParameterId>& parameters = model.unit(unit).parameters;
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](ParameterId p) { return NumElements(model.parameter(p).spec.shape) > 0; });
}

CallUses UsesOf(const Model& model, const CallSpec& call) {
  CallUses uses;
  std::set<UnitId> forward_units, backward_units;
  const auto need = [&](UnitId unit, bool backward) {
    if (forward_units.insert(unit).second && HasElements(model, unit)) uses.forward_units.push_back(unit);
    if (!backward || !backward_units.insert(unit).second) return;
    if (HasElements(model, unit)) uses.backward_units.push_back(unit);
  };
  const auto view = [&](ParameterId parameter, bool backward) {
    uses.forward_parameters.push_back(parameter);
    if (backward) uses.backward_parameters.push_back(parameter);
  };
  for (UnitId unit : call.units) {
    need(unit, /*backward=*/true);
    for (ParameterId p : model.unit(unit).parameters) view(p, /*backward=*/true);
  }
  for (ParameterId p : call.parameters) {
    need(model.parameter(p).unit, /*backward=*/true);
    view(p, /*backward=*/true);
  }
  for (UnitId unit : call.forward_only_units) {
    need(unit, /*backward=*/call.recompute);
    for (ParameterId p : model.unit(unit).parameters) view(p, /*backward=*/false);
  }
  uses.inputs = call.inputs;
  std::set<TensorId> shared(call.inputs.begin(), call.inputs.end());
  shared.insert(call.outputs.begin(), call.outputs.end());
  for (TensorId t : call.saved) {
    if (shared.count(t) == 0) uses.private_tensors.push_back(t);
  }
  return uses;
}

absl::Status CheckParameterGradients(const Model& model, const ModelUses& uses) {
  for (size_t p = 0; p < model.parameters().size(); ++p) {
    const Parameter& parameter = model.parameters()[p];
    if (!parameter.spec.trainable || parameter.allow_unused || uses.has_gradient[p]) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "trainable parameter \"", parameter.spec.name, "\" of unit \"", model.unit(parameter.unit).name,
        "\" gets no gradient: no call that the loss depends on names it; name it in such a call, set trainable = "
        "false, or call AllowUnused"));
  }
  return absl::OkStatus();
}

}  // namespace

ModelUses ForwardUses(const Model& model) {
  ModelUses uses;
  for (const CallSpec& call : model.calls()) uses.calls.push_back(UsesOf(model, call));
  uses.has_gradient.assign(model.parameters().size(), false);
  return uses;
}

absl::StatusOr<ModelUses> TrainingUses(const Model& model) {
  if (!model.loss().valid()) {
    return absl::InvalidArgumentError(
        "training needs a loss and the model has none; call ModelBuilder::SetLoss with a float32 scalar output, or "
        "name "
        "one as \"loss\" in the model file");
  }
  ModelUses uses = ForwardUses(model);
  const size_t num_tensors = model.tensors().size();
  // Which tensors depend on something that wants a gradient.
  std::vector<bool> differentiable(num_tensors, false);
  for (size_t t = 0; t < num_tensors; ++t) differentiable[t] = model.tensors()[t].keep_gradient;
  for (size_t c = 0; c < model.calls().size(); ++c) {
    CallUses& call = uses.calls[c];
    for (ParameterId p : call.forward_parameters) {
      if (model.parameter(p).spec.trainable) call.parameter_gradients.push_back(p);
    }
    bool depends = !call.parameter_gradients.empty();
    for (TensorId t : call.inputs) depends = depends || differentiable[t.value()];
    for (TensorId t : model.calls()[c].outputs) {
      differentiable[t.value()] = depends && IsFloatingPoint(model.tensor(t).spec.dtype);
    }
  }
  // Which of these a scheduled backward call writes.
  std::vector<bool> written(num_tensors, false);
  written[model.loss().value()] = differentiable[model.loss().value()];
  for (size_t c = model.calls().size(); c-- > 0;) {
    const CallSpec& spec = model.calls()[c];
    CallUses& call = uses.calls[c];
    const bool reached =
        std::any_of(spec.outputs.begin(), spec.outputs.end(), [&](TensorId t) { return written[t.value()]; });
    if (!reached) {
      call.parameter_gradients.clear();
      continue;
    }
    call.backward = true;
    for (TensorId t : call.inputs) {
      if (!differentiable[t.value()]) continue;
      call.input_gradients.push_back(t);
      written[t.value()] = true;
    }
    for (TensorId t : spec.outputs) {
      if (written[t.value()]) {
        call.output_gradients.push_back(t);
      } else if (differentiable[t.value()] && model.tensor(t).kind == TensorKind::kActivation) {
        return absl::InvalidArgumentError(absl::StrCat(
            "backward of call \"", spec.name, "\" needs the gradient of its output \"", model.tensor(t).spec.name,
            "\", but no call that the loss depends on reads that tensor; let one read it, or add it with AddOutput"));
      }
    }
    for (ParameterId p : call.parameter_gradients) uses.has_gradient[p.value()] = true;
    if (spec.recompute && !spec.state.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "call \"", spec.name, "\" sets recompute and updates state \"", model.tensor(spec.state[0]).spec.name,
          "\", which a second forward would update twice; unset one of them"));
    }
  }
  REPRISE_RETURN_IF_ERROR(CheckParameterGradients(model, uses));
  if (!differentiable[model.loss().value()]) {
    return absl::InvalidArgumentError(
        absl::StrCat("nothing to train: the loss \"", model.tensor(model.loss()).spec.name,
                     "\" depends on no trainable parameter and on no input with KeepGradient"));
  }
  return uses;
}

}  // namespace reprise::internal
