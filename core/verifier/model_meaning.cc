#include "core/verifier/model_meaning.h"

#include <algorithm>
#include <limits>

#include "reprise/core/norm_ranges.h"

namespace reprise::internal {
namespace {

// Value::time of what never changes.
constexpr int64_t kNever = std::numeric_limits<int64_t>::min();

int64_t NormBytes(const FlatGroup& group) {
  return NormRanges(group.shard_elements) * static_cast<int64_t>(sizeof(double));
}

}  // namespace

ModelMeaning::ModelMeaning(const Plan& plan)
    : plan_(plan),
      calls_(plan.model.calls().size()),
      gradient_terms_(plan.model.parameters().size(), 0),
      tensor_gradient_terms_(plan.model.tensors().size(), 0),
      state_updates_(plan.model.tensors().size(), 0) {
  FindOperands();
  if (trains()) FindGradients();
  FindStateTimes();
  FindOffsets();
}

void ModelMeaning::FindOperands() {
  const Model& model = plan_.model;
  std::vector<int> named_by(model.tensors().size(), -1);  // the last call that names it beside `saved`
  for (size_t c = 0; c < calls_.size(); ++c) {
    const CallSpec& spec = model.calls()[c];
    CallMeaning& call = calls_[c];
    for (const UnitId unit : spec.units) {
      const std::vector<ParameterId>& all = model.unit(unit).parameters;
      call.forward_parameters.insert(call.forward_parameters.end(), all.begin(), all.end());
    }
    call.forward_parameters.insert(call.forward_parameters.end(), spec.parameters.begin(), spec.parameters.end());
    call.backward_parameters = call.forward_parameters;
    for (const UnitId unit : spec.forward_only_units) {
      const std::vector<ParameterId>& all = model.unit(unit).parameters;
      call.forward_parameters.insert(call.forward_parameters.end(), all.begin(), all.end());
    }
    for (const std::vector<TensorId>* list : {&spec.inputs, &spec.outputs}) {
      for (const TensorId t : *list) named_by[t.value()] = static_cast<int>(c);
    }
    for (const TensorId t : spec.saved) {
      if (named_by[t.value()] != static_cast<int>(c)) call.private_tensors.push_back(t);
    }
  }
}

// A tensor wants a gradient if it depends on something trainable or on an input whose gradient is kept; it gets one if
// the loss depends on it. Calls give gradients in reverse order.
void ModelMeaning::FindGradients() {
  const Model& model = plan_.model;
  const auto is_trainable = [&](ParameterId p) { return model.parameter(p).spec.trainable; };
  std::vector<bool> wants(model.tensors().size());
  for (size_t t = 0; t < wants.size(); ++t) wants[t] = model.tensors()[t].keep_gradient;
  for (size_t c = 0; c < calls_.size(); ++c) {
    const CallSpec& spec = model.calls()[c];
    const bool depends =
        std::any_of(calls_[c].forward_parameters.begin(), calls_[c].forward_parameters.end(), is_trainable) ||
        std::any_of(spec.inputs.begin(), spec.inputs.end(), [&](TensorId t) { return wants[t.value()]; });
    for (const TensorId t : spec.outputs) wants[t.value()] = depends && IsFloatingPoint(model.tensor(t).spec.dtype);
  }
  const auto has = [&](TensorId t) {
    return tensor_gradient_terms_[t.value()] > 0 || (t == model.loss() && wants[t.value()]);
  };
  for (size_t c = calls_.size(); c-- > 0;) {
    const CallSpec& spec = model.calls()[c];
    CallMeaning& call = calls_[c];
    std::copy_if(spec.outputs.begin(), spec.outputs.end(), std::back_inserter(call.output_gradients), has);
    call.backward = !call.output_gradients.empty();
    if (!call.backward) continue;
    for (const TensorId t : spec.inputs) {
      if (wants[t.value()]) call.input_gradients.push_back({t, tensor_gradient_terms_[t.value()]++});
    }
    for (const ParameterId p : call.forward_parameters) {
      if (is_trainable(p)) call.parameter_gradients.push_back({p, gradient_terms_[p.value()]++});
    }
  }
}

// States are updated in the order in which calls run: all forward, then those that have one backward, in reverse.
void ModelMeaning::FindStateTimes() {
  for (size_t c = 0; c < calls_.size(); ++c) {
    for (const TensorId t : plan_.model.calls()[c].state) {
      calls_[c].state_times.push_back(state_updates_[t.value()]++);
    }
  }
  for (size_t c = calls_.size(); c-- > 0;) {
    if (!calls_[c].backward) continue;
    for (const TensorId t : plan_.model.calls()[c].state) {
      calls_[c].backward_state_times.push_back(state_updates_[t.value()]++);
    }
  }
}

void ModelMeaning::FindOffsets() {
  for (const UnitLayout& unit : plan_.layout.units) {
    std::vector<int64_t>&reduce = reduce_offsets_.emplace_back(1, 0), &full = unsharded_offsets_.emplace_back(1, 0);
    std::vector<int64_t>& norm = norm_offsets_.emplace_back();
    std::vector<bool>& has = group_has_gradient_.emplace_back();
    for (const FlatGroup& group : unit.groups) {
      const int64_t elements = group.trainable ? group.num_elements : 0;
      reduce.push_back(reduce.back() + AlignUp(elements * SizeOf(plan_.reduce_dtype(group))));
      full.push_back(full.back() + AlignUp(elements * SizeOf(kAccumulateDType)));
      norm.push_back(norm_bytes_);
      if (group.trainable) norm_bytes_ += NormBytes(group);
      has.push_back(std::any_of(group.parameters.begin(), group.parameters.end(), [&](const PlacedParameter& placed) {
        return placed.num_elements > 0 && has_gradient(placed.parameter);
      }));
    }
  }
}

std::vector<GroupSegment> ModelMeaning::SegmentsOf(UnitId unit) const {
  std::vector<GroupSegment> segments;
  for (int g = 0; g < num_groups(unit); ++g) {
    for (const PlacedParameter& placed : group(unit, g).parameters) {
      if (placed.num_elements == 0 || !has_gradient(placed.parameter)) continue;
      segments.push_back({g, placed.first_element, placed.num_elements});
    }
  }
  return segments;
}

int64_t ModelMeaning::norm_bytes(UnitId unit, int g) const { return NormBytes(group(unit, g)); }

Value ModelMeaning::Master(UnitId unit, int g, int64_t time) const {
  return {ValueKind::kMaster, unit.value(), g, 0, group(unit, g).trainable ? time : 0};
}

Value ModelMeaning::Shard(UnitId unit, int g, int64_t time) const {
  Value shard = Master(unit, g, time);
  if (group(unit, g).dtype != plan_.options.master_dtype) shard.kind = ValueKind::kShard;
  return shard;
}

Value ModelMeaning::Tensor(TensorId tensor, int64_t microbatch) const {
  const reprise::Tensor& spec = plan_.model.tensor(tensor);
  const bool stays = spec.kind == TensorKind::kInput && spec.spec.external;
  return {ValueKind::kTensor, tensor.value(), 0, 0, stays ? kNever : microbatch};
}

Value ModelMeaning::TensorGradient(TensorId tensor, int terms, int64_t microbatch) const {
  return {ValueKind::kTensorGradient, tensor.value(), 0, terms, microbatch};
}

Value ModelMeaning::TensorGradient(TensorId tensor, int64_t microbatch) const {
  return TensorGradient(tensor, gradient_terms(tensor), microbatch);
}

Value ModelMeaning::Gradient(ParameterId parameter, int terms, int64_t microbatch) const {
  // Before its first term it is what the microbatch before left.
  if (terms == 0) return Gradient(parameter, microbatch - 1);
  return {ValueKind::kParameterGradient, parameter.value(), 0, terms, microbatch};
}

Value ModelMeaning::Gradient(ParameterId parameter, int64_t microbatch) const {
  return {ValueKind::kParameterGradient, parameter.value(), 0, gradient_terms_[parameter.value()], microbatch};
}

Value ModelMeaning::CastGradient(ParameterId parameter, int64_t microbatch) const {
  Value gradient = Gradient(parameter, microbatch);
  if (gradient_dtype(parameter) == plan_.reduce_dtype(group_of(parameter))) return gradient;
  gradient.kind = ValueKind::kCastGradient;
  return gradient;
}

Value ModelMeaning::Accumulator(UnitId unit, int g, int64_t microbatch) const {
  return {ValueKind::kAccumulator, unit.value(), g, 0, has_gradient(unit, g) ? microbatch : kNever};
}

Value ModelMeaning::NormPartials(UnitId unit, int g, int64_t microbatch) const {
  Value partials = Accumulator(unit, g, microbatch);
  partials.kind = ValueKind::kNormPartials;
  return partials;
}

}  // namespace reprise::internal
