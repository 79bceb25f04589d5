// The way of a gradient through one schedule: written by backward, packed, reduced, accumulated; in gradient slots.
#ifndef REPRISE_CORE_PLANNER_GRADIENT_PLANNER_H_
#define REPRISE_CORE_PLANNER_GRADIENT_PLANNER_H_

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/planner/model_uses.h"
#include "core/planner/schedule_builder.h"
#include "reprise/core/plan.h"

namespace reprise::internal {

// What outlives a graph: the same buffers and slots after `first` as before and after `body`.
struct CarriedState {
  std::vector<Resident> residents;                // by unit
  std::vector<OutstandingReduction> outstanding;  // Tail::kCarried: by unit
};

// How one unit's gradient is made, the same in every microbatch.
struct UnitGradient {
  std::vector<ParameterId> parameters;  // that have a gradient
  int first_call = -1, last_call = -1;  // backward calls that write it, in the order they run (first >= last)
  bool direct = false;                  // backward writes some of it in the reduce buffer
  bool in_place = false;                // no reduce buffer and no slot: its unsharded gradient is reduced where it is
  // Index of a slot of its own beyond the shared ones, for a unit that is held across other units' gradients or whose
  // reduction may be carried to the next graph; -1: it takes turns in the shared slots.
  int dedicated_slot = -1;
};

struct GradientPlan {
  std::vector<UnitGradient> units;                // by UnitId
  std::vector<std::vector<UnitId>> completed_by;  // by CallId: units whose last writer it is, direct ones first
  int dedicated_slots = 0;
};
// Uses plan.model, layout and options, of which gradient_slots may be unset.
GradientPlan PlanGradients(const Plan& plan, const PlanOptions& options, const ModelUses& uses);
// Shared slots that one backward call needs at once; at least 1.
int GradientSlotNeed(const GradientPlan& gradients, const ModelUses& uses, const Model& model);

// Can backward write the group's gradient in the reduce buffer, so that no pack is needed?
bool WritesReduceBuffer(const PlanOptions& options, const FlatGroup& group);

// Adds the commands to a builder. All arguments are borrowed.
class GradientPlanner {
 public:
  // `adds` says whether unsharded gradients (Reduce::kOncePerStep) already hold a sum.
  GradientPlanner(Plan& plan, const GradientPlan& gradients, bool adds, ScheduleBuilder& builder);

  void StartMicrobatch(int position);
  // Uses of a backward call for the gradients that it writes; appends to `after` what must be done with their slots.
  absl::Status AddWriteUses(CallId call, const std::vector<ParameterId>& parameters, std::vector<BufferUse>& uses,
                            std::vector<CommandId>& after);
  // Packs, if need be, reduces and accumulates a unit whose gradient is complete.
  absl::Status Reduce(UnitId unit);
  // The same, but leaves reduction and accumulation to the next graph: the packed gradient is in `carried`.
  absl::Status Carry(const OutstandingReduction& carried);
  // Binds the reduce buffer of the present microbatch to a buffer that outlives the graph.
  void BindReduceBuffer(const OutstandingReduction& carried) { reduce_buffers_[carried.unit.value()] = carried.buffer; }
  // Reduces and accumulates what an earlier graph left; `position` as in ReduceScatter.
  void ReduceCarried(const OutstandingReduction& carried, int position);

 private:
  absl::Status TakeSlot(UnitId unit, absl::string_view who, std::vector<CommandId>& after);
  void ReleaseSlot(int slot, CommandId last_reader);
  absl::Status Pack(UnitId unit);
  void ReduceAndAccumulate(UnitId unit, int position, BufferId buffer, int slot, AccumulateMode mode);
  BufferUse ReduceUse(UnitId unit, int group, BufferId buffer, Access access) const;
  // The bytes of a gradient that compute writes in the reduce buffer.
  BufferUse WrittenInReduceBuffer(ParameterId parameter) const;
  // Groups in which some parameter has a gradient, and the elements that have one.
  std::vector<int> GroupsOf(UnitId unit) const;
  std::vector<GroupSegment> SegmentsOf(UnitId unit) const;
  BufferUse GradientUse(ParameterId parameter);
  const FlatGroup& GroupOf(ParameterId parameter) const;

  Plan& plan_;
  const GradientPlan& gradients_;
  const bool adds_;
  ScheduleBuilder& builder_;
  int position_ = 0;
  std::vector<CommandId> last_readers_;               // by slot: of the gradient that was in it before
  std::set<std::pair<CommandId, int>> free_;          // shared slots that are not taken, with their last readers
  std::vector<std::vector<int64_t>> reduce_offsets_;  // by unit, see ReduceOffsets
  std::vector<std::vector<int64_t>> full_offsets_;    // by unit, see UnshardedGradientOffsets
  std::vector<BufferId> reduce_buffers_;              // by unit, of this microbatch; invalid: not yet needed
  std::vector<int> unit_slots_;                       // by unit, of this microbatch; -1: not yet taken
  std::vector<BufferId> locals_;                      // by parameter, of this microbatch: gradients to be packed
  std::vector<bool> written_;                         // by parameter, of this microbatch
};

}  // namespace reprise::internal

#endif  // REPRISE_CORE_PLANNER_GRADIENT_PLANNER_H_
