#include "tests/core/sample_plan.h"

#include <utility>

namespace reprise::testing {
namespace {

constexpr UnitId kUnit(0);
constexpr CallId kCall(0);
constexpr BufferId kWeights(0), kGathered(1), kInput(2), kOutput(3);

Schedule SampleBody() {
  Schedule body;
  body.name = "body";
  body.microbatches = 2;
  body.start.residents = {{kUnit, kGathered, 1}};
  body.end.outstanding = {{kUnit, kGathered, 2}};
  body.end.gradients = true;
  body.commands = {
      {Begin{}},
      {NextMicrobatch{2}},
      {StageInputs{1, 4}},
      {AllGather{kUnit, 1, Transport::kNccl, AxisId(0)},
       Lane::kAllGather,
       {{kWeights, 0, 128, Access::kRead, Role::kShard, 0}, {kGathered, 0, 256, Access::kAssign, Role::kGathered, 0}},
       {{CommandId(0), WaitReason::kFork}}},
      {Forward{kCall, 1, true},
       Lane::kCompute,
       {{kGathered, 0, 64, Access::kRead, Role::kParameter, 0},
        {kInput, 0, 16, Access::kRead, Role::kInput, 0},
        {kOutput, 0, 4, Access::kAssign, Role::kOutput, 1}},
       {{CommandId(3), WaitReason::kData}}},
      {Backward{kCall, 1}},
      {PackGradients{kUnit, 1}},
      {ReduceScatter{kUnit, -1, 1, Transport::kSymmetric, Sum::kRankOrder, AxisId(0)},
       Lane::kReduceScatter,
       {},
       {{CommandId(0), WaitReason::kFork}, {CommandId(3), WaitReason::kOrder}}},
      {Accumulate{kUnit, 1, Sum::kRankOrder, AccumulateMode::kAlwaysAssign, false, {{0, 0, 32}}}, Lane::kReduceScatter},
      {RecordLoss{1}, Lane::kCompute, {{kOutput, 0, 4, Access::kUpdate, Role::kOutput, 1}}},
      {End{}, Lane::kCompute, {}, {{CommandId(3), WaitReason::kJoin}, {CommandId(8), WaitReason::kJoin}}},
  };
  return body;
}

Schedule SampleStep() {
  Schedule step;
  step.name = "step";
  step.commands = {{Begin{}},
                   {SumNorm{AxisId(0)}, Lane::kReduceScatter, {}, {{CommandId(0), WaitReason::kFork}}},
                   {UpdateParameters{kUnit}},
                   {RefreshShards{kUnit}},
                   {PublishMetrics{}},
                   {End{}}};
  return step;
}

}  // namespace

Model SampleModel(const char* unit_name) {
  ModelBuilder builder;
  const UnitId unit = builder.AddUnit(unit_name);
  builder.AddParameter(unit, {"w", {4, 8}, DType::kBFloat16});
  const TensorId x = builder.AddInput({"x", {4}, DType::kFloat32});
  const TensorId loss = builder.AddOutput({"loss", {}, DType::kFloat32});
  builder.AddCall({.name = "call", .units = {unit}, .inputs = {x}, .outputs = {loss}, .saved = {x}});
  builder.SetLoss(loss);
  return *builder.Build();
}

Plan SamplePlan() {
  Plan plan;
  plan.model = SampleModel();
  plan.layout.world_size = 2;
  plan.layout.units = {{{{DType::kBFloat16, DType::kFloat32, true, {{ParameterId(0), 0, 32}}, 128, 64}}, {0}, 256}};
  plan.layout.parameters = {{0, 0}};
  plan.options.prefetch_depth = 1;
  plan.options.weight_slots = 2;
  plan.options.gradient_slots = 2;
  plan.options.microbatches_per_graph = 2;
  plan.options.transports = EveryUnit(Transport::kNccl);
  plan.options.sum = Sum::kRankOrder;
  plan.axes = {{"data", 2}};
  plan.unit_policies = {{}};
  plan.buffers = {{"weights.u0", Storage::kWeights, 128, 0},
                  {"gathered.u0", Storage::kCommunicating, 256, 512},
                  {"x", Storage::kLocal, 16, 0},
                  {"x", Storage::kLocal, 4, 256}};
  plan.unit_buffers = {{{kWeights}, {BufferId(1)}, {BufferId(2)}, BufferId(3), {{BufferId(1), BufferId(2)}}, {8}}};
  plan.tensor_buffers = {{BufferId(0), BufferId(1), BufferId(2)}, {}};
  plan.control = BufferId(0);
  plan.step_state = BufferId(1);
  plan.norm_partials = BufferId(2);
  plan.norm_parts = BufferId(1);
  plan.metrics = BufferId(3);
  plan.schedules = {SampleBody(), SampleStep()};
  plan.step = 1;
  plan.weight_slots = 1;
  plan.dedicated_gradient_slots = 1;
  for (int s = 0; s < kNumStorages; ++s) plan.memory.num_bytes[s] = 100 << s;
  plan.memory.lower_bound[static_cast<int>(Storage::kCommunicating)] = 1024;
  plan.memory.lower_bound[static_cast<int>(Storage::kLocal)] = 2048;
  plan.fingerprint = ComputeFingerprint(plan);
  return plan;
}

}  // namespace reprise::testing
