// What the model says of one microbatch, in values: which operands each call has, who adds to which gradient in which
// order, and where each gradient lies in the buffers of its unit. Derived from the model, its layout and the options,
// independently of the planner.
#ifndef REPRISE_CORE_VERIFIER_MODEL_MEANING_H_
#define REPRISE_CORE_VERIFIER_MODEL_MEANING_H_

#include <vector>

#include "core/verifier/value.h"
#include "reprise/core/plan.h"

namespace reprise::internal {

inline constexpr int64_t AlignUp(int64_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

// A gradient that a backward call writes, as one of several.
template <class T>
struct GradientTerm {
  T id;
  int index = 0;  // how many calls have written it before in this microbatch
};

struct CallMeaning {
  std::vector<ParameterId> forward_parameters = {}, backward_parameters = {};
  std::vector<TensorId> private_tensors = {};
  std::vector<int> state_times = {}, backward_state_times = {};  // by CallSpec::state: earlier updates
  // Training only.
  bool backward = false;  // there is a backward call
  std::vector<GradientTerm<ParameterId>> parameter_gradients = {};
  std::vector<GradientTerm<TensorId>> input_gradients = {};
  std::vector<TensorId> output_gradients = {};
};

class ModelMeaning {
 public:
  // Borrows the plan, of which it reads the model, the layout, the options and whether it trains.
  explicit ModelMeaning(const Plan& plan);

  const Plan& plan() const { return plan_; }
  bool trains() const { return plan_.step >= 0; }
  bool once() const { return plan_.options.reduce == Reduce::kOncePerStep; }
  int microbatches() const { return *plan_.options.microbatches_per_graph; }
  const FlatGroup& group(UnitId unit, int group) const { return plan_.layout.units[unit.value()].groups[group]; }
  const FlatGroup& group_of(ParameterId parameter) const {
    return group(plan_.model.parameter(parameter).unit, plan_.layout.parameters[parameter.value()].group);
  }
  int num_groups(UnitId unit) const { return static_cast<int>(plan_.layout.units[unit.value()].groups.size()); }
  int64_t bytes_of(TensorId tensor) const {
    const TensorSpec& spec = plan_.model.tensor(tensor).spec;
    return NumElements(spec.shape) * SizeOf(spec.dtype);
  }
  const CallMeaning& call(CallId id) const { return calls_[id.value()]; }

  // ---- gradients ----
  bool has_gradient(ParameterId p) const { return gradient_terms_[p.value()] > 0; }
  // Some element of the group has a gradient.
  bool has_gradient(UnitId unit, int group) const { return group_has_gradient_[unit.value()][group]; }
  // Elements of a unit that have gradients.
  std::vector<GroupSegment> SegmentsOf(UnitId unit) const;
  // In which compute writes a parameter's gradient.
  DType gradient_dtype(ParameterId p) const { return once() ? kAccumulateDType : plan_.model.parameter(p).spec.dtype; }
  // Byte offset of a group in a reduce buffer, and in an unsharded gradient, of its unit; for `groups` that of the end.
  int64_t reduce_offset(UnitId unit, int group) const { return reduce_offsets_[unit.value()][group]; }
  int64_t unsharded_offset(UnitId unit, int group) const { return unsharded_offsets_[unit.value()][group]; }
  // Of a parameter in its unit's unsharded gradient.
  int64_t unsharded_offset(ParameterId p) const {
    const ParameterPlace& place = plan_.layout.parameters[p.value()];
    return unsharded_offset(plan_.model.parameter(p).unit, place.group) +
           place.first_element * SizeOf(kAccumulateDType);
  }
  // Where the partial norms of a group lie, and the bytes of all.
  int64_t norm_offset(UnitId unit, int group) const { return norm_offsets_[unit.value()][group]; }
  int64_t norm_bytes(UnitId unit, int group) const;
  int64_t norm_bytes() const { return norm_bytes_; }

  // ---- values ----
  Value Shard(UnitId unit, int g, int64_t time) const;
  Value Master(UnitId unit, int g, int64_t time) const;
  Value Tensor(TensorId tensor, int64_t microbatch) const;
  Value State(TensorId tensor, int64_t updates) const { return {ValueKind::kState, tensor.value(), 0, 0, updates}; }
  Value TensorGradient(TensorId tensor, int terms, int64_t microbatch) const;
  Value Gradient(ParameterId parameter, int terms, int64_t microbatch) const;
  // All terms.
  Value Gradient(ParameterId parameter, int64_t microbatch) const;
  Value TensorGradient(TensorId tensor, int64_t microbatch) const;
  Value CastGradient(ParameterId parameter, int64_t microbatch) const;
  // Of a group that has no gradient the sum is what it was, forever.
  Value Accumulator(UnitId unit, int g, int64_t microbatch) const;
  Value NormPartials(UnitId unit, int g, int64_t microbatch) const;
  int gradient_terms(TensorId tensor) const { return tensor_gradient_terms_[tensor.value()]; }
  int state_updates(TensorId tensor) const { return state_updates_[tensor.value()]; }

 private:
  void FindOperands();
  void FindGradients();
  void FindStateTimes();
  void FindOffsets();

  const Plan& plan_;
  std::vector<CallMeaning> calls_;
  std::vector<int> gradient_terms_;         // by ParameterId, in one microbatch
  std::vector<int> tensor_gradient_terms_;  // by TensorId
  std::vector<int> state_updates_;          // by TensorId
  std::vector<std::vector<bool>> group_has_gradient_;
  std::vector<std::vector<int64_t>> reduce_offsets_, unsharded_offsets_, norm_offsets_;
  int64_t norm_bytes_ = 0;
};

}  // namespace reprise::internal

#endif  // REPRISE_CORE_VERIFIER_MODEL_MEANING_H_
