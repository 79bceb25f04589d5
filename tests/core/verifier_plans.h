// Small correct plans, made by hand.
#ifndef REPRISE_TESTS_CORE_VERIFIER_PLANS_H_
#define REPRISE_TESTS_CORE_VERIFIER_PLANS_H_

#include "reprise/core/control_block.h"
#include "tests/testing/plan_builder.h"

namespace reprise::testing {

// One graph and a step of two units, one weight slot and one gradient slot: every copy shares the same bytes.
struct TwoUnits {
  Plan plan;
  BufferId g0, g1, a0, da0, wire1, received1, accumulator1;
};

inline TwoUnits TwoUnitPlan() {
  PlanBuilder b;
  const UnitId u0 = b.Unit("u0", 128), u1 = b.Unit("u1", 128);
  const CallId c0 = b.Call("c0"), c1 = b.Call("c1");
  const AxisId axis(0);
  const BufferId w0 = b.Buffer("w0", Storage::kWeights, 128, 0), w1 = b.Buffer("w1", Storage::kWeights, 128, 256);
  const BufferId m0 = b.Buffer("m0", Storage::kMasters, 256, 0);
  const BufferId acc0 = b.Buffer("accumulator0", Storage::kSession, 256, 0);
  const BufferId acc1 = b.Buffer("accumulator1", Storage::kSession, 256, 256);
  const BufferId y = b.Buffer("y", Storage::kSession, 4, 512), norm = b.Buffer("norm", Storage::kSession, 16, 768);
  const BufferId g0 = b.Buffer("g0", Storage::kCommunicating, 256, 0);
  const BufferId g1 = b.Buffer("g1", Storage::kCommunicating, 256, 0);
  const BufferId g0b = b.Buffer("g0b", Storage::kCommunicating, 256, 0);
  const BufferId wire0 = b.Buffer("wire0", Storage::kCommunicating, 256, 256);
  const BufferId wire1 = b.Buffer("wire1", Storage::kCommunicating, 256, 256);
  const BufferId received0 = b.Buffer("received0", Storage::kCommunicating, 128, 512);
  const BufferId received1 = b.Buffer("received1", Storage::kCommunicating, 128, 512);
  b.Buffer("room", Storage::kCommunicating, 256, 1024);
  const BufferId parts = b.Buffer("norm_parts", Storage::kSession, 3 * sizeof(NormPart), 4096);
  b.plan().norm_parts = parts;
  b.AccumulateInto({acc0, acc1}, norm);
  const BufferId a0 = b.Buffer("a0", Storage::kLocal, 256, 0), da0 = b.Buffer("da0", Storage::kLocal, 256, 256);
  const auto read = [&](BufferId id, Role role) { return b.Use(id, Access::kRead, role); };
  const auto assign = [&](BufferId id, Role role) { return b.Use(id, Access::kAssign, role); };
  const auto update = [&](BufferId id, Role role) { return b.Use(id, Access::kUpdate, role); };
  const auto norm_of = [&](UnitId u) {
    return BufferUse{norm, u.value() * 8, 8, Access::kUpdate, Role::kNormPartials, 0};
  };
  using enum Role;

  b.Start("body", 1);
  b.Command(Begin{}, Lane::kCompute);
  b.Command(AllGather{u0, 0, Transport::kNccl, axis}, Lane::kAllGather, {read(w0, kShard), assign(g0, kGathered)},
            {Fork(0)});
  b.Command(Forward{c0}, Lane::kCompute, {read(g0, kParameter), assign(a0, kOutput)}, {Data(1)});
  b.Command(AllGather{u1, 0, Transport::kNccl, axis}, Lane::kAllGather, {read(w1, kShard), assign(g1, kGathered)},
            {Order(2)});
  b.Command(Forward{c1}, Lane::kCompute, {read(g1, kParameter), read(a0, kInput), assign(y, kOutput)}, {Data(3)});
  b.Command(Backward{c1}, Lane::kCompute,
            {read(g1, kParameter), read(a0, kSaved), b.Use(wire1, Access::kAssign, kParameterGradient, 1),
             assign(da0, kInputGradient)});
  b.Command(ReduceScatter{u1, 0, 0, Transport::kNccl, Sum::kNccl, axis}, Lane::kReduceScatter,
            {read(wire1, kReduceBuffer), assign(received1, kReceived)}, {Data(5)});
  Accumulate accumulate1 = b.AccumulateOf(u1);
  accumulate1.beside_compute = true;
  b.Command(accumulate1, Lane::kReduceScatter, {read(received1, kReceived), update(acc1, kAccumulator), norm_of(u1)});
  b.Command(AllGather{u0, 0, Transport::kNccl, axis}, Lane::kAllGather, {read(w0, kShard), assign(g0b, kGathered)},
            {Order(5)});
  b.Command(Backward{c0}, Lane::kCompute,
            {read(g0b, kParameter), read(da0, kOutputGradient), assign(wire0, kParameterGradient)},
            {Order(6), Data(8)});
  b.Command(ReduceScatter{u0, 0, 0, Transport::kNccl, Sum::kNccl, axis}, Lane::kReduceScatter,
            {read(wire0, kReduceBuffer), assign(received0, kReceived)}, {Data(9)});
  b.Command(b.AccumulateOf(u0), Lane::kReduceScatter,
            {read(received0, kReceived), update(acc0, kAccumulator), norm_of(u0)});
  b.Command(End{}, Lane::kCompute, {}, {Join(11)});

  b.Start("step", 0);
  b.Command(Begin{}, Lane::kCompute);
  b.Command(SumNorm{axis}, Lane::kReduceScatter,
            {update(norm, kNormPartials), b.Use(parts, Access::kAssign, kNormParts, -1)}, {Fork(0)});
  b.Command(UpdateParameters{u0}, Lane::kCompute, {read(norm, kNormPartials), update(m0, kMaster)}, {Data(1)});
  b.Command(RefreshShards{u0}, Lane::kCompute, {read(m0, kMaster), assign(w0, kShard)});
  b.Command(End{}, Lane::kCompute);
  b.plan().step = 1;
  return {b.Build(), g0, g1, a0, da0, wire1, received1, acc1};
}

// Schedules 0 to 3 are first, body, finish and step of one unit.
struct OneUnit {
  Plan plan;
  BufferId weights, gathered, other, received;
};

// The parts that both plans of one unit have.
struct OneUnitParts {
  PlanBuilder b;
  UnitId u0 = b.Unit("u0", 128);
  CallId c0 = b.Call("c0");
  AxisId axis{0};
  BufferId w0 = b.Buffer("w0", Storage::kWeights, 128, 0);
  BufferId acc0 = b.Buffer("accumulator0", Storage::kSession, 256, 0);
  BufferId full0 = b.Buffer("full0", Storage::kSession, 512, 256);
  BufferId norm = b.Buffer("norm", Storage::kSession, 8, 768);
  BufferId g0 = b.Buffer("g0", Storage::kCommunicating, 256, 0);
  BufferId wire0 = b.Buffer("wire0", Storage::kCommunicating, 256, 256);
  BufferId received0 = b.Buffer("received0", Storage::kCommunicating, 128, 512);
  BufferId other = b.Buffer("other", Storage::kCommunicating, 256, 768);
  BufferId reduced = wire0;  // what AddReduction reads
  int slot = 0;              // of it

  BufferUse Read(BufferId id, Role role) const { return b.Use(id, Access::kRead, role); }
  BufferUse Assign(BufferId id, Role role) const { return b.Use(id, Access::kAssign, role); }
  BufferUse Update(BufferId id, Role role) const { return b.Use(id, Access::kUpdate, role); }

  // Begin and the gather, forward and backward.
  void AddFirst(BufferId gradient) {
    b.Command(Begin{}, Lane::kCompute);
    b.Command(AllGather{u0, 0, Transport::kNccl, axis}, Lane::kAllGather,
              {Read(w0, Role::kShard), Assign(g0, Role::kGathered)}, {Fork(0)});
    b.Command(Forward{c0}, Lane::kCompute, {Read(g0, Role::kParameter)}, {Data(1)});
    b.Command(Backward{c0}, Lane::kCompute, {Read(g0, Role::kParameter), Assign(gradient, Role::kParameterGradient)});
    b.Command(End{}, Lane::kCompute);
  }
  void AddReduction(int position, std::vector<Wait> waits) {
    b.Command(ReduceScatter{u0, position, slot, Transport::kNccl, Sum::kNccl, axis}, Lane::kReduceScatter,
              {Read(reduced, Role::kReduceBuffer), Assign(received0, Role::kReceived)}, std::move(waits));
    const bool once = b.plan().options.reduce == Reduce::kOncePerStep;
    Accumulate accumulate = b.AccumulateOf(u0, position);
    accumulate.mode = once ? AccumulateMode::kAlwaysAssign : AccumulateMode::kByMicrobatch;
    accumulate.beside_compute = position < 0;
    b.Command(accumulate, Lane::kReduceScatter,
              {Read(received0, Role::kReceived), Update(acc0, Role::kAccumulator), Update(norm, Role::kNormPartials)});
  }
  void AddStep() {
    b.Start("step", 0);
    b.Command(Begin{}, Lane::kCompute);
    b.Command(End{}, Lane::kCompute);
  }
  OneUnit Build() {
    b.AccumulateInto({acc0}, norm);
    b.plan().body = 1;
    b.plan().finish = 2;
    b.plan().step = 3;
    return {b.Build(), w0, g0, other, received0};
  }
};

// Weights stay resident, and the last reduction is left to the next graph.
inline OneUnit CarriedPlan() {
  OneUnitParts p;
  const ScheduleState held = {{{p.u0, p.g0, 0}}, {{p.u0, p.wire0, 0}}};
  p.b.Start("first", 1).end = held;
  p.AddFirst(p.wire0);

  Schedule& body = p.b.Start("body", 1);
  body.start = body.end = held;
  p.b.Command(Begin{}, Lane::kCompute);
  p.AddReduction(-1, {Fork(0)});
  p.b.Command(Forward{p.c0}, Lane::kCompute, {p.Read(p.g0, Role::kParameter)});
  p.b.Command(Backward{p.c0}, Lane::kCompute,
              {p.Read(p.g0, Role::kParameter), p.Assign(p.wire0, Role::kParameterGradient)}, {Data(1)});
  p.b.Command(End{}, Lane::kCompute, {}, {Join(2)});

  p.b.Start("finish", 0).start.outstanding = held.outstanding;
  p.b.Command(Begin{}, Lane::kCompute);
  p.AddReduction(0, {Fork(0)});
  p.b.Command(End{}, Lane::kCompute, {}, {Join(2)});
  p.AddStep();
  return p.Build();
}

// First and body, which keep the unsharded gradient, and the start of finish.
inline void AddUnshardedGradient(OneUnitParts& p, BufferId full) {
  p.b.plan().options.reduce = Reduce::kOncePerStep;
  p.b.plan().unit_buffers[0].unsharded_gradient = full;
  p.b.Start("first", 1).end.gradients = true;
  p.AddFirst(full);

  Schedule& body = p.b.Start("body", 1);
  body.start.gradients = body.end.gradients = true;
  p.AddFirst(full);
  body.commands[3].uses[1].access = Access::kUpdate;

  p.b.Start("finish", 0).start.gradients = true;
  p.b.Command(Begin{}, Lane::kCompute);
}

// The unsharded gradient is kept, and packed and reduced once per step.
inline OneUnit UnshardedGradientPlan() {
  OneUnitParts p;
  AddUnshardedGradient(p, p.full0);
  p.b.Command(PackGradients{p.u0}, Lane::kCompute,
              {p.Read(p.full0, Role::kParameterGradient), p.Assign(p.wire0, Role::kReduceBuffer)});
  p.AddReduction(0, {Data(1)});
  p.b.Command(End{}, Lane::kCompute, {}, {Join(3)});
  p.AddStep();
  return p.Build();
}

// The same with the reduce dtype its own: it is reduced where it is.
inline OneUnit InPlacePlan() {
  OneUnitParts p;
  p.b.plan().options.reduce_dtype = DType::kFloat32;
  p.reduced = p.b.Buffer("sum0", Storage::kGradients, 512, 0);
  p.slot = -1;
  p.received0 = p.b.Buffer("received of f32", Storage::kCommunicating, 256, 512);
  AddUnshardedGradient(p, p.reduced);
  p.AddReduction(0, {Fork(0)});
  p.b.Command(End{}, Lane::kCompute, {}, {Join(2)});
  p.AddStep();
  return p.Build();
}

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_CORE_VERIFIER_PLANS_H_
