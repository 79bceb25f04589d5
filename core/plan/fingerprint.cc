#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "core/model/hasher.h"
#include "reprise/core/plan.h"

namespace reprise {
namespace {

// Feeds every field of a plan, in order of declaration. The structured bindings name all fields of a struct: a new
// field does not compile until it is fed too.
class PlanHasher {
 public:
  void FeedPlan(const Plan& plan) {
    const auto& [model, layout, options, axes, unit_policies, buffers, unit_buffers, tensor_buffers, control,
                 step_state, norm_partials, norm_parts, metrics, schedules, first, body, finish, step, weight_slots,
                 dedicated_gradient_slots, memory, fingerprint] = plan;
    Feed(model.units(), model.parameters(), model.tensors(), model.calls(), model.loss(), layout, options, axes,
         unit_policies, buffers, unit_buffers, tensor_buffers, control, step_state, norm_partials, norm_parts, metrics,
         schedules, first, body, finish, step, weight_slots, dedicated_gradient_slots, memory.num_bytes,
         memory.lower_bound);
  }
  Fingerprint Finish() const { return hasher_.Finish(); }

 private:
  template <class... Fields>
  void Feed(const Fields&... fields) {
    (FeedOne(fields), ...);
  }

  // Every integer, enumerator and id is one 64-bit word; lists and strings start with their length.
  template <class T>
  requires(std::is_integral_v<T> || std::is_enum_v<T>) void FeedOne(T value) {
    hasher_.Add(static_cast<uint64_t>(value));
  }
  template <class Tag>
  void FeedOne(Id<Tag> id) {
    hasher_.Add(static_cast<uint64_t>(id.value()));
  }
  void FeedOne(const std::string& text) { hasher_.Add(absl::string_view(text)); }
  template <class T>
  void FeedOne(const std::optional<T>& value) {
    Feed(value.has_value());
    if (value.has_value()) Feed(*value);
  }
  template <class T>
  void FeedList(const T& list) {
    Feed(list.size());
    for (const auto& element : list) Feed(element);
  }
  template <class T>
  void FeedOne(const std::vector<T>& list) {
    FeedList(list);
  }
  template <class T>
  void FeedOne(absl::Span<const T> list) {
    FeedList(list);
  }
  template <class T, size_t n>
  void FeedOne(const std::array<T, n>& list) {
    FeedList(list);
  }

  void FeedOne(const ParameterSpec& spec) {
    const auto& [name, shape, dtype, trainable, reduce_dtype] = spec;
    Feed(name, shape, dtype, trainable, reduce_dtype);
  }
  void FeedOne(const TensorSpec& spec) {
    const auto& [name, shape, dtype, external] = spec;
    Feed(name, shape, dtype, external);
  }
  void FeedOne(const CallSpec& spec) {
    const auto& [name, units, parameters, inputs, outputs, saved, state, forward_only_units, scratch_bytes, recompute] =
        spec;
    Feed(name, units, parameters, inputs, outputs, saved, state, forward_only_units, scratch_bytes, recompute);
  }
  void FeedOne(const Parameter& parameter) {
    const auto& [spec, unit, allow_unused] = parameter;
    Feed(spec, unit, allow_unused);
  }
  void FeedOne(const Unit& unit) {
    const auto& [name, parameters] = unit;
    Feed(name, parameters);
  }
  void FeedOne(const Tensor& tensor) {
    const auto& [spec, kind, keep_gradient] = tensor;
    Feed(spec, kind, keep_gradient);
  }

  void FeedOne(const PlacedParameter& placed) {
    const auto& [parameter, first_element, num_elements] = placed;
    Feed(parameter, first_element, num_elements);
  }
  void FeedOne(const FlatGroup& group) {
    const auto& [dtype, reduce_dtype, trainable, parameters, num_elements, shard_elements] = group;
    Feed(dtype, reduce_dtype, trainable, parameters, num_elements, shard_elements);
  }
  void FeedOne(const ParameterPlace& place) {
    const auto& [group, first_element] = place;
    Feed(group, first_element);
  }
  void FeedOne(const UnitLayout& layout) {
    const auto& [groups, gathered_offsets, gathered_bytes] = layout;
    Feed(groups, gathered_offsets, gathered_bytes);
  }
  void FeedOne(const ModelLayout& layout) {
    const auto& [world_size, units, parameters] = layout;
    Feed(world_size, units, parameters);
  }

  void FeedOne(const PlanOptions& options) {
    const auto& [prefetch_depth, weight_slots, gradient_slots, microbatches_per_graph, residency, reduce, tail,
                 transports, sum, reduce_dtype, master_dtype, optimizer_states] = options;
    Feed(prefetch_depth, weight_slots, gradient_slots, microbatches_per_graph, residency, reduce, tail, transports, sum,
         reduce_dtype, master_dtype, optimizer_states);
  }
  void FeedOne(const TransportChoice& choice) {
    const auto& [unit_bytes, transports] = choice;
    Feed(unit_bytes, transports);
  }
  void FeedOne(const UnitTransports& transports) {
    const auto& [gather, exchange] = transports;
    Feed(gather, exchange);
  }
  void FeedOne(const UnitPolicy& policy) {
    const auto& [transports, sum] = policy;
    Feed(transports, sum);
  }
  void FeedOne(const Axis& axis) {
    const auto& [name, size] = axis;
    Feed(name, size);
  }
  void FeedOne(const Buffer& buffer) {
    const auto& [name, storage, num_bytes, offset] = buffer;
    Feed(name, storage, num_bytes, offset);
  }
  void FeedOne(const UnitBuffers& buffers) {
    const auto& [weights, masters, accumulators, unsharded_gradient, optimizer_states, norm_partials] = buffers;
    Feed(weights, masters, accumulators, unsharded_gradient, optimizer_states, norm_partials);
  }
  void FeedOne(const TensorBuffers& buffers) {
    const auto& [staging, value, kept_gradient] = buffers;
    Feed(staging, value, kept_gradient);
  }

  void FeedOne(const Schedule& schedule) {
    const auto& [name, microbatches, commands, start, end] = schedule;
    Feed(name, microbatches, commands, start, end);
  }
  void FeedOne(const ScheduledCommand& scheduled) {
    const auto& [command, lane, uses, waits] = scheduled;
    Feed(command.index(), lane, uses, waits);
    std::visit([this](const auto& c) { FeedCommand(c); }, command);
  }
  void FeedOne(const BufferUse& use) {
    const auto& [buffer, offset, num_bytes, access, role, id, peers] = use;
    Feed(buffer, offset, num_bytes, access, role, id, peers);
  }
  void FeedOne(const Wait& wait) {
    const auto& [command, reason] = wait;
    Feed(command, reason);
  }
  void FeedOne(const ScheduleState& state) {
    const auto& [residents, outstanding, gradients] = state;
    Feed(residents, outstanding, gradients);
  }
  void FeedOne(const Resident& resident) {
    const auto& [unit, buffer, slot] = resident;
    Feed(unit, buffer, slot);
  }
  void FeedOne(const OutstandingReduction& reduction) {
    const auto& [unit, buffer, slot] = reduction;
    Feed(unit, buffer, slot);
  }

  template <class Fieldless>
  requires(std::is_empty_v<Fieldless>) void FeedCommand(const Fieldless&) {}
  void FeedCommand(const NextMicrobatch& command) {
    const auto& [count] = command;
    Feed(count);
  }
  void FeedCommand(const StageInputs& command) {
    const auto& [position, slots] = command;
    Feed(position, slots);
  }
  void FeedCommand(const AllGather& command) {
    const auto& [unit, slot, transport, axis] = command;
    Feed(unit, slot, transport, axis);
  }
  void FeedCommand(const Forward& command) {
    const auto& [call, position, recompute] = command;
    Feed(call, position, recompute);
  }
  void FeedCommand(const Backward& command) {
    const auto& [call, position] = command;
    Feed(call, position);
  }
  void FeedCommand(const PackGradients& command) {
    const auto& [unit, position] = command;
    Feed(unit, position);
  }
  void FeedCommand(const ReduceScatter& command) {
    const auto& [unit, position, slot, transport, sum, axis] = command;
    Feed(unit, position, slot, transport, sum, axis);
  }
  void FeedCommand(const Accumulate& command) {
    const auto& [unit, position, sum, mode, beside_compute, segments] = command;
    Feed(unit, position, sum, mode, beside_compute, segments);
  }
  void FeedOne(const GroupSegment& segment) {
    const auto& [group, first_element, num_elements] = segment;
    Feed(group, first_element, num_elements);
  }
  void FeedCommand(const RecordLoss& command) {
    const auto& [position] = command;
    Feed(position);
  }
  void FeedCommand(const SumNorm& command) {
    const auto& [axis] = command;
    Feed(axis);
  }
  void FeedCommand(const UpdateParameters& command) {
    const auto& [unit] = command;
    Feed(unit);
  }
  void FeedCommand(const RefreshShards& command) {
    const auto& [unit] = command;
    Feed(unit);
  }

  internal::Hasher hasher_;
};

}  // namespace

Fingerprint ComputeFingerprint(const Plan& plan) {
  PlanHasher hasher;
  hasher.FeedPlan(plan);
  return hasher.Finish();
}

}  // namespace reprise
