// Adds buffers to a plan under construction. Offsets come later, from PlaceBuffers.
#ifndef REPRISE_CORE_PLANNER_PLAN_BUFFERS_H_
#define REPRISE_CORE_PLANNER_PLAN_BUFFERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "reprise/core/plan.h"

namespace reprise::internal {

BufferId AddBuffer(Plan& plan, std::string name, Storage storage, int64_t num_bytes);

// Everything that outlives a replay: parameters, and for training accumulators, optimizer state and step values;
// staging, outputs, state and external tensors. Fills Plan::unit_buffers, tensor_buffers and the named ids.
// ResourceExhausted, naming the tensor, for staging of more bytes than an int64 counts.
absl::Status AddPersistentBuffers(Plan& plan, bool training);

// Does `finish` reduce the unit's unsharded gradient where it is? All groups have one buffer, so all must be ready to
// be reduced.
bool ReducesInPlace(const PlanOptions& options, const UnitLayout& unit);
// Byte offset of each group of a unit in its unsharded gradient, then the total, as in ReduceOffsets.
std::vector<int64_t> UnshardedGradientOffsets(const Plan& plan, UnitId unit);

// A gathered copy of a unit.
BufferId AddGatheredBuffer(Plan& plan, UnitId unit, const std::string& label);
// A reduce buffer of a unit.
BufferId AddReduceBuffer(Plan& plan, UnitId unit, const std::string& label);

// Where a transport writes what the others receive in their memory: the last of `uses`, for the peers on the axis too.
void AddPeerUse(Transport transport, AxisId axis, std::vector<BufferUse>& uses);

int64_t TensorBytes(const TensorSpec& spec);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_PLANNER_PLAN_BUFFERS_H_
