// One change of one field of a plan, whichever it is.
#ifndef REPRISE_TESTS_TESTING_FIELD_MUTATION_H_
#define REPRISE_TESTS_TESTING_FIELD_MUTATION_H_

#include <array>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "reprise/core/plan.h"
#include "tests/testing/random_model.h"

namespace reprise::testing {

// Visits every number, id and list of a plan, in order of declaration, and changes one of them. Lists that hold nothing
// but plan data are cut, emptied or lengthened by a copy of an element.
class FieldMutation {
 public:
  // Changes the field at position `target`.
  FieldMutation(int64_t target, Random& random) : target_(target), random_(random) {}

  // Everything of the plan but its model.
  void Visit(Plan& plan) {
    Each(plan.layout, plan.options, plan.axes, plan.unit_policies);
    VisitDecided(plan);
  }
  // What the planner has made of model, layout, options and policies.
  void VisitDecided(Plan& plan) {
    auto& [model, layout, options, axes, unit_policies, buffers, unit_buffers, tensor_buffers, control, step_state,
           norm_partials, norm_parts, metrics, schedules, first, body, finish, step, weight_slots,
           dedicated_gradient_slots, memory, fingerprint] = plan;
    Each(buffers, unit_buffers, tensor_buffers, control, step_state, norm_partials, norm_parts, metrics, schedules,
         first, body, finish, step, weight_slots, dedicated_gradient_slots, memory.num_bytes, memory.lower_bound);
  }
  void Visit(Command& command) { One(command); }
  void Visit(BufferUse& use) { One(use); }
  // The number of fields, after Visit.
  int64_t count() const { return count_; }

 private:
  template <class... Fields>
  void Each(Fields&... fields) {
    (One(fields), ...);
  }
  bool Hit() { return count_++ == target_; }

  // An extreme value, a neighbour of 0 or of the old value, or anything.
  template <class T>
  T Changed(T old) {
    constexpr T kMin = std::numeric_limits<T>::min(), kMax = std::numeric_limits<T>::max();
    switch (random_.Below(8)) {
      case 0:
        return kMin;
      case 1:
        return kMax;
      case 2:
        return static_cast<T>(random_.Chance(50) ? -1 : 0);
      case 3:
        return static_cast<T>(kMax - random_.Below(512));
      case 4:
        return old == kMax ? kMin : static_cast<T>(old + 1);
      case 5:
        return old == kMin ? kMax : static_cast<T>(old - 1);
      case 6:
        return static_cast<T>(random_.Below(8));
      default:
        return static_cast<T>(random_.Next());
    }
  }

  template <class T>
  requires std::is_integral_v<T>
  void One(T& value) {
    if (Hit()) value = Changed(value);
  }
  void One(bool& value) {
    if (Hit()) value = !value;
  }
  template <class T>
  requires std::is_enum_v<T>
  void One(T& value) {
    if (Hit()) value = static_cast<T>(Changed(static_cast<std::underlying_type_t<T>>(value)));
  }
  template <class Tag>
  void One(Id<Tag>& id) {
    if (Hit()) id = Id<Tag>(Changed(id.value()));
  }
  void One(std::string&) {}
  template <class T>
  void One(std::optional<T>& value) {
    if (Hit()) value.reset();
    if (value.has_value()) One(*value);
  }
  template <class T, size_t n>
  void One(std::array<T, n>& list) {
    for (T& element : list) One(element);
  }
  template <class T>
  void One(std::vector<T>& list) {
    if (Hit()) {
      if (list.empty()) {
        list.emplace_back();
      } else if (const int64_t way = random_.Below(3); way == 0) {
        list.clear();
      } else if (way == 1) {
        list.pop_back();
      } else {
        list.push_back(list[random_.Below(static_cast<int64_t>(list.size()))]);
      }
    }
    for (T& element : list) One(element);
  }
  template <class... Commands>
  void One(std::variant<Commands...>& command) {
    if (Hit()) {
      const std::array<Command, sizeof...(Commands)> others = {Commands{}...};
      command = others[random_.Below(static_cast<int64_t>(others.size()))];
    }
    std::visit([&](auto& c) { OfCommand(c); }, command);
  }

  void One(ModelLayout& l) { Each(l.world_size, l.units, l.parameters); }
  void One(UnitLayout& l) { Each(l.groups, l.gathered_offsets, l.gathered_bytes); }
  void One(FlatGroup& g) { Each(g.dtype, g.reduce_dtype, g.trainable, g.parameters, g.num_elements, g.shard_elements); }
  void One(PlacedParameter& p) { Each(p.parameter, p.first_element, p.num_elements); }
  void One(ParameterPlace& p) { Each(p.group, p.first_element); }
  void One(PlanOptions& o) {
    Each(o.prefetch_depth, o.weight_slots, o.gradient_slots, o.microbatches_per_graph, o.residency, o.reduce, o.tail,
         o.transports, o.sum, o.reduce_dtype, o.master_dtype, o.optimizer_states);
  }
  void One(TransportChoice& c) { Each(c.unit_bytes, c.transports); }
  void One(UnitTransports& t) { Each(t.gather, t.exchange); }
  void One(UnitPolicy& p) { Each(p.transports, p.sum); }
  void One(GroupSegment& s) { Each(s.group, s.first_element, s.num_elements); }
  void One(Axis& a) { Each(a.size); }
  void One(Buffer& b) { Each(b.storage, b.num_bytes, b.offset); }
  void One(UnitBuffers& b) {
    Each(b.weights, b.masters, b.accumulators, b.unsharded_gradient, b.optimizer_states, b.norm_partials);
  }
  void One(TensorBuffers& b) { Each(b.staging, b.value, b.kept_gradient); }
  void One(Schedule& s) { Each(s.microbatches, s.commands, s.start, s.end); }
  void One(ScheduleState& s) { Each(s.residents, s.outstanding, s.gradients); }
  void One(Resident& r) { Each(r.unit, r.buffer, r.slot); }
  void One(OutstandingReduction& r) { Each(r.unit, r.buffer, r.slot); }
  void One(ScheduledCommand& c) { Each(c.command, c.lane, c.uses, c.waits); }
  void One(BufferUse& u) { Each(u.buffer, u.offset, u.num_bytes, u.access, u.role, u.id, u.peers); }
  void One(Wait& w) { Each(w.command, w.reason); }

  void OfCommand(Begin&) {}
  void OfCommand(NextMicrobatch& c) { Each(c.count); }
  void OfCommand(StageInputs& c) { Each(c.position, c.slots); }
  void OfCommand(AllGather& c) { Each(c.unit, c.slot, c.transport, c.axis); }
  void OfCommand(Forward& c) { Each(c.call, c.position, c.recompute); }
  void OfCommand(Backward& c) { Each(c.call, c.position); }
  void OfCommand(PackGradients& c) { Each(c.unit, c.position); }
  void OfCommand(ReduceScatter& c) { Each(c.unit, c.position, c.slot, c.transport, c.sum, c.axis); }
  void OfCommand(Accumulate& c) { Each(c.unit, c.position, c.sum, c.mode, c.beside_compute, c.segments); }
  void OfCommand(RecordLoss& c) { Each(c.position); }
  void OfCommand(SumNorm& c) { Each(c.axis); }
  void OfCommand(UpdateParameters& c) { Each(c.unit); }
  void OfCommand(RefreshShards& c) { Each(c.unit); }
  void OfCommand(PublishMetrics&) {}
  void OfCommand(End&) {}

  const int64_t target_;
  Random& random_;
  int64_t count_ = 0;
};

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_TESTING_FIELD_MUTATION_H_
