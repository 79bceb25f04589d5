// Whatever numbers a plan holds, the verifier and the forms of a plan read no memory that is not theirs and compute
// nothing that overflows. The sanitizers of the test's other builds watch.
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "reprise/core/verifier.h"
#include "tests/core/verifier_plans.h"
#include "tests/testing/random_model.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using reprise::testing::IsOk;
using reprise::testing::Random;

// Visits every number, id and list of a plan, in order of declaration, and changes one of them. Lists that hold nothing
// but plan data are cut, emptied or lengthened by a copy of an element.
class Mutation {
 public:
  // Changes the field at position `target`.
  Mutation(int64_t target, Random& random) : target_(target), random_(random) {}

  void Visit(Plan& plan) {
    auto& [model, layout, options, axes, unit_policies, buffers, unit_buffers, tensor_buffers, control, step_state,
           norm_partials, norm_parts, metrics, schedules, first, body, finish, step, weight_slots,
           dedicated_gradient_slots, memory, fingerprint] = plan;
    Each(layout, options, axes, unit_policies, buffers, unit_buffers, tensor_buffers, control, step_state,
         norm_partials, norm_parts, metrics, schedules, first, body, finish, step, weight_slots,
         dedicated_gradient_slots, memory.num_bytes, memory.lower_bound);
  }
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
         o.transports, o.sum, o.reduce_dtype, o.accumulate, o.master_dtype, o.optimizer_states);
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

// The fields of a plan that a mutation may change.
int64_t NumFields(Plan plan) {
  Random random(0);
  Mutation none(-1, random);
  none.Visit(plan);
  return none.count();
}

std::vector<Plan> ValidPlans() {
  std::vector<Plan> plans = {testing::TwoUnitPlan().plan, testing::CarriedPlan().plan,
                             testing::UnshardedGradientPlan().plan, testing::InPlacePlan().plan};
  const Model stack = StackModel(2, {8, 8}, DType::kBFloat16, 4).value();
  plans.push_back(PlanTraining(stack, 2, {.reduce_dtype = DType::kFloat32}).value());
  plans.push_back(PlanTraining(stack, 2, {.microbatches_per_graph = 2, .tail = Tail::kCarried}).value());
  plans.push_back(
      PlanTraining(stack, 2, {.reduce = Reduce::kOncePerStep, .transports = EveryUnit(Transport::kSymmetric)}).value());
  plans.push_back(PlanTraining(stack, 2,
                               {.reduce = Reduce::kOncePerStep,
                                .transports = EveryUnit(Transport::kCopyEngine),
                                .reduce_dtype = DType::kFloat32})
                      .value());
  plans.push_back(PlanForward(stack, 2, {}).value());
  plans.push_back(PlanTraining(testing::RandomModel(1, {.max_units = 3}), 2, {.tail = Tail::kCarried}).value());
  return plans;
}

void ReadAll(const Plan& plan) {
  (void)FindViolations(plan);
  (void)Summarize(plan, 4);
  EXPECT_NE(ToText(plan), "");
  EXPECT_NE(ToDot(plan), "");
  (void)ToJson(plan, 4);
  (void)ComputeFingerprint(plan);
}

TEST(VerifierMutationTest, ThePlansAreValid) {
  for (const Plan& plan : ValidPlans()) EXPECT_THAT(Verify(plan), IsOk());
}

TEST(VerifierMutationTest, EveryReaderIsTotal) {
  constexpr int kCases = 2000;
  const std::vector<Plan> plans = ValidPlans();
  for (int seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Plan plan = plans[random.Below(static_cast<int64_t>(plans.size()))];
    // One change shows what a single check lets through, several what checks take for granted of each other.
    const int64_t num_fields = NumFields(plan);
    for (int64_t changes = random.Chance(70) ? 1 : 1 + random.Below(4); changes > 0; --changes) {
      Mutation(random.Below(num_fields), random).Visit(plan);
    }
    ReadAll(plan);
  }
}

TEST(VerifierMutationTest, EveryReaderIsTotalOnThePlanOfAnotherModel) {
  for (Plan plan : ValidPlans()) {
    for (const Model& model : {Model(), StackModel(1, {8, 8}, DType::kBFloat16, 4).value()}) {
      plan.model = model;
      ReadAll(plan);
    }
  }
  ReadAll(Plan());
}

// ---- what the mutations found, by name ----

std::string FirstMessage(const Plan& plan) {
  const std::vector<Violation> violations = FindViolations(plan);
  return violations.empty() ? "" : violations[0].message;
}

TEST(VerifierMutationTest, NamesSizesThatDoNotFit) {
  using ::testing::HasSubstr;
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();
  constexpr int kLocal = static_cast<int>(Storage::kLocal), kMasters = static_cast<int>(Storage::kMasters);
  const Plan valid = testing::TwoUnitPlan().plan;
  Plan plan = valid;
  plan.memory.num_bytes[kLocal] = kMin;
  EXPECT_THAT(FirstMessage(plan), HasSubstr("-9223372036854775808 bytes of storage local"));
  plan.memory.num_bytes[kLocal] = plan.memory.num_bytes[kMasters] = kMax / 2 + 1;
  EXPECT_THAT(FirstMessage(plan), HasSubstr("exceed 9223372036854775807 with the storages before it"));
  plan = valid;
  plan.layout.units[0].groups[0].parameters[0].first_element = kMin;
  EXPECT_THAT(FirstMessage(plan), HasSubstr("is not inside the 128 elements of group 0 of u0"));
  plan = valid;
  plan.layout.units[1].groups[0].num_elements = kMax;
  EXPECT_THAT(FirstMessage(plan), HasSubstr("group 0 of u1 has 9223372036854775807 elements"));
}

TEST(VerifierMutationTest, NamesOptionsThatDoNotExist) {
  using ::testing::HasSubstr;
  const Plan valid = testing::TwoUnitPlan().plan;
  for (const int microbatches : {0, -1, std::numeric_limits<int>::min()}) {
    Plan plan = valid;
    plan.options.microbatches_per_graph = microbatches;
    EXPECT_THAT(FirstMessage(plan), HasSubstr("microbatches per graph, not at least 1"));
    EXPECT_THAT(Summarize(plan, 1).status().ToString(), HasSubstr("give one that passes Verify"));
  }
  Plan plan = valid;
  plan.options.tail = Tail(9);
  EXPECT_THAT(FirstMessage(plan), HasSubstr("an option of the plan has a value that does not exist"));
}

TEST(VerifierMutationTest, NamesTwoCarriedGradientsInOneSlot) {
  testing::PlanBuilder b;
  b.plan().options.gradient_slots = 2;
  const UnitId u0 = b.Unit("u0", 128), u1 = b.Unit("u1", 128);
  b.Call("c");
  const BufferId wire0 = b.Buffer("wire0", Storage::kCommunicating, 256, 0);
  const BufferId wire1 = b.Buffer("wire1", Storage::kCommunicating, 256, 256);
  const BufferId received = b.Buffer("received", Storage::kCommunicating, 128, 512);
  const BufferId acc0 = b.Buffer("acc0", Storage::kSession, 256, 0),
                 acc1 = b.Buffer("acc1", Storage::kSession, 256, 256);
  const BufferId norm = b.Buffer("norm", Storage::kSession, 16, 512);
  const BufferId gradient = b.Buffer("gradient", Storage::kLocal, 256, 0);
  b.AccumulateInto({acc0, acc1}, norm);
  const auto delivers = [&] { return b.Use(received, Access::kAssign, Role::kReceived); };
  const auto sums = [&](BufferId accumulator, int64_t unit) {
    return std::vector<BufferUse>{b.Use(received, Access::kRead, Role::kReceived),
                                  b.Use(accumulator, Access::kUpdate, Role::kAccumulator),
                                  {norm, unit * 8, 8, Access::kUpdate, Role::kNormPartials, 0}};
  };
  b.Start("body", 1).start.outstanding = {{u0, wire0, 0}, {u1, wire1, 1}};
  b.Command(Begin{}, Lane::kCompute);
  b.Command(Backward{CallId(0)}, Lane::kCompute,
            {b.Use(gradient, Access::kAssign, Role::kParameterGradient, 0),
             b.Use(gradient, Access::kAssign, Role::kParameterGradient, 1)});
  b.Command(ReduceScatter{u0, -1, 0, Transport::kNccl, Sum::kNccl, AxisId(0)}, Lane::kReduceScatter,
            {b.Use(wire0, Access::kRead, Role::kReduceBuffer), delivers()}, {testing::Fork(0)});
  b.Command(b.AccumulateOf(u0, -1), Lane::kReduceScatter, sums(acc0, 0));
  b.Command(ReduceScatter{u1, -1, 0, Transport::kNccl, Sum::kNccl, AxisId(0)}, Lane::kReduceScatter,
            {b.Use(wire1, Access::kRead, Role::kReduceBuffer), delivers()});
  b.Command(b.AccumulateOf(u1, -1), Lane::kReduceScatter, sums(acc1, 1));
  b.Command(End{}, Lane::kCompute, {}, {testing::Join(5)});
  EXPECT_EQ(FirstMessage(b.Build()),
            "the schedule starts with the gradients of u0 and u1 and reduces both in gradient slot 0");
}

}  // namespace
}  // namespace reprise
