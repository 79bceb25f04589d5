// Plans made by hand, command by command, for tests of what reads plans. Nothing is derived or checked.
#ifndef REPRISE_TESTING_PLAN_BUILDER_H_
#define REPRISE_TESTING_PLAN_BUILDER_H_

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "reprise/core/plan.h"

namespace reprise::testing {

// Two ranks on one axis; one schedule after another; gradients are added by NCCL. Each unit has one group with one bf16
// parameter of the same index.
class PlanBuilder {
 public:
  PlanBuilder() {
    plan_.axes = {{"data", 2}};
    plan_.layout.world_size = 2;
    plan_.options.prefetch_depth = 1;
    plan_.options.weight_slots = plan_.weight_slots = 1;
    plan_.options.gradient_slots = 1;
    plan_.options.microbatches_per_graph = 1;
    plan_.options.sum = Sum::kNccl;
    tensor_ = model_.AddInput({.name = "tensor", .shape = {1}});
  }

  UnitId Unit(const std::string& name, int64_t num_elements) {
    const UnitId unit = model_.AddUnit(name);
    const ParameterId parameter = model_.AddParameter(unit, {.name = name + ".w", .shape = {num_elements}});
    const FlatGroup group = {
        .parameters = {{parameter, 0, num_elements}}, .num_elements = num_elements, .shard_elements = num_elements / 2};
    plan_.layout.units.push_back({{group}, {0}, num_elements * SizeOf(DType::kBFloat16)});
    plan_.layout.parameters.push_back({});
    plan_.unit_buffers.emplace_back();
    plan_.unit_policies.push_back({.sum = Sum::kNccl});
    return unit;
  }
  CallId Call(const std::string& name) { return model_.AddCall({.name = name, .inputs = {tensor_}}); }
  // Grows the storage to hold it.
  BufferId Buffer(const std::string& name, Storage storage, int64_t num_bytes, int64_t offset) {
    plan_.buffers.push_back({name, storage, num_bytes, offset});
    int64_t& total = plan_.memory.num_bytes[static_cast<int>(storage)];
    if (storage != Storage::kExternal) total = std::max(total, offset + num_bytes);
    return BufferId(static_cast<int64_t>(plan_.buffers.size()) - 1);
  }

  // The accumulators of the first units, in order, and one partial norm of each. Groups are too small for more.
  void AccumulateInto(std::vector<BufferId> accumulators, BufferId norm_partials) {
    plan_.norm_partials = norm_partials;
    for (size_t u = 0; u < accumulators.size(); ++u) {
      plan_.unit_buffers[u].accumulators = {accumulators[u]};
      plan_.unit_buffers[u].norm_partials = {static_cast<int64_t>(u * sizeof(double))};
    }
  }

  // Of a unit whose parameter has a gradient.
  Accumulate AccumulateOf(UnitId unit, int position = 0) const {
    return {.unit = unit,
            .position = position,
            .sum = Sum::kNccl,
            .segments = {{0, 0, plan_.layout.units[unit.value()].groups[0].num_elements}}};
  }

  // A use of the whole buffer. Every id of a tensor, parameter or group is 0 unless given.
  BufferUse Use(BufferId buffer, Access access, Role role, int32_t id = 0) const {
    return {buffer, 0, plan_.buffer(buffer).num_bytes, access, role, id};
  }

  // The following commands are its.
  Schedule& Start(const std::string& name, int microbatches) {
    plan_.schedules.push_back({.name = name, .microbatches = microbatches});
    return plan_.schedules.back();
  }
  CommandId Command(reprise::Command command, Lane lane, std::vector<BufferUse> uses = {},
                    std::vector<Wait> waits = {}) {
    std::vector<ScheduledCommand>& commands = plan_.schedules.back().commands;
    commands.push_back({std::move(command), lane, std::move(uses), std::move(waits)});
    return CommandId(static_cast<int64_t>(commands.size()) - 1);
  }

  Plan& plan() { return plan_; }
  // The model must be a valid one.
  Plan Build() {
    plan_.model = *model_.Build();
    return plan_;
  }

 private:
  ModelBuilder model_;
  TensorId tensor_;  // the only one, read by every call
  Plan plan_;
};

inline Wait Data(int command) { return {CommandId(command), WaitReason::kData}; }
inline Wait Order(int command) { return {CommandId(command), WaitReason::kOrder}; }
inline Wait Fork(int command) { return {CommandId(command), WaitReason::kFork}; }
inline Wait Join(int command) { return {CommandId(command), WaitReason::kJoin}; }

}  // namespace reprise::testing

#endif  // REPRISE_TESTING_PLAN_BUILDER_H_
