#include "tests/core/hand_made_plan.h"

#include <string>
#include <utility>
#include <vector>

#include "core/planner/schedule_builder.h"

namespace reprise::testing {
namespace {

BufferId AddBuffer(Plan& plan, const char* name, Storage storage, int64_t num_bytes) {
  plan.buffers.push_back({name, storage, num_bytes});
  return BufferId(static_cast<int64_t>(plan.buffers.size()) - 1);
}

class HandMadeSchedule {
 public:
  HandMadeSchedule(Plan& plan, const HandMadeOptions& options, BufferId resident)
      : plan_(plan), options_(options), resident_(resident) {}

  std::vector<ScheduledCommand> Make(bool starts_with_resident) {
    weight_readers_.resize(options_.weight_slots);
    reduces_.resize(options_.gradient_slots);
    const int calls = options_.calls;
    // Slots are taken in turns, such that the last gather, of unit 0, takes the slot of its resident.
    const int gathers = 2 * calls - (starts_with_resident ? 1 : 0);
    const int first_slot = options_.weight_slots - gathers % options_.weight_slots;
    slot_ = starts_with_resident ? 0 : first_slot;
    std::vector<BufferId> activations = {Local("x", options_.activation())};
    builder_.Add(StageInputs{}, Lane::kCompute, {Whole(activations[0], Access::kAssign)});
    for (int c = 0; c < calls; ++c) {
      const BufferId weights = c == 0 && starts_with_resident ? resident_ : Gather(c, New(options_.weights()));
      activations.push_back(Local("activation", options_.activation()));
      Read(builder_.Add(
          Forward{CallId(c)}, Lane::kCompute,
          {Whole(weights, Access::kRead), Whole(activations[c], Access::kRead),
           Whole(activations[c + 1], Access::kAssign), Whole(Local("scratch", options_.scratch()), Access::kAssign)}));
      if (c == 0 && starts_with_resident) slot_ = first_slot;
    }
    BufferId gradient = activations.back();
    for (int c = calls - 1; c >= 0; --c) {
      const BufferId weights = Gather(c, c == 0 ? resident_ : New(options_.weights()));
      gradient = Backward(c, weights, activations[c], gradient);
    }
    return builder_.Finish();
  }

 private:
  BufferId Local(const char* name, int64_t num_bytes) { return AddBuffer(plan_, name, Storage::kLocal, num_bytes); }
  BufferId New(int64_t num_bytes) { return AddBuffer(plan_, "gathered", Storage::kCommunicating, num_bytes); }
  BufferUse Whole(BufferId buffer, Access access) const {
    return {buffer, 0, plan_.buffer(buffer).num_bytes, access, Role::kGathered, 0};
  }

  BufferId Gather(int call, BufferId buffer) {
    slot_ = (slot_ + 1) % options_.weight_slots;
    std::vector<CommandId> after;
    if (weight_readers_[slot_].valid()) after.push_back(weight_readers_[slot_]);
    builder_.Add(AllGather{UnitId(call), slot_, Transport::kNccl, AxisId(0)}, Lane::kAllGather,
                 {Whole(buffer, Access::kAssign)}, after);
    return buffer;
  }
  // The copy gathered last has its reader.
  void Read(CommandId reader) { weight_readers_[slot_] = reader; }

  BufferId Backward(int call, BufferId weights, BufferId input, BufferId output_gradient) {
    const int slot = call % options_.gradient_slots;
    std::vector<CommandId> after;
    if (reduces_[slot].valid()) after.push_back(reduces_[slot]);
    const BufferId gradient = Local("gradient", options_.activation());
    const BufferId reduce_buffer = AddBuffer(plan_, "reduce_buffer", Storage::kCommunicating, options_.reduce_buffer());
    const BufferId received = AddBuffer(plan_, "received", Storage::kCommunicating, options_.received());
    Read(
        builder_.Add(reprise::Backward{CallId(call)}, Lane::kCompute,
                     {Whole(weights, Access::kRead), Whole(input, Access::kRead), Whole(output_gradient, Access::kRead),
                      Whole(gradient, Access::kAssign), Whole(Local("scratch", options_.scratch()), Access::kAssign),
                      Whole(reduce_buffer, Access::kAssign)},
                     after));
    reduces_[slot] =
        builder_.Add(ReduceScatter{UnitId(call), 0, slot, Transport::kNccl, Sum::kNccl, AxisId(0)},
                     Lane::kReduceScatter, {Whole(reduce_buffer, Access::kRead), Whole(received, Access::kAssign)});
    builder_.Add(Accumulate{UnitId(call)}, Lane::kReduceScatter, {Whole(received, Access::kRead)});
    return gradient;
  }

  Plan& plan_;
  const HandMadeOptions& options_;
  const BufferId resident_;
  internal::ScheduleBuilder builder_;
  int slot_ = 0;                                     // of the copy that is read next; the resident's is 0
  std::vector<CommandId> weight_readers_, reduces_;  // by slot
};

}  // namespace

Plan HandMadePlan(const HandMadeOptions& options) {
  Plan plan;
  const BufferId resident = AddBuffer(plan, "resident", Storage::kCommunicating, options.weights());
  const ScheduleState kept = {{{UnitId(0), resident, 0}}};
  for (const bool body : {false, true}) {
    Schedule schedule = {.name = body ? "body" : "first", .microbatches = 1};
    schedule.commands = HandMadeSchedule(plan, options, resident).Make(/*starts_with_resident=*/body);
    if (body) schedule.start = kept;
    schedule.end = kept;
    plan.schedules.push_back(std::move(schedule));
  }
  plan.body = 1;
  return plan;
}

}  // namespace reprise::testing
