#include "core/verifier/slots.h"

#include <algorithm>
#include <map>
#include <utility>

namespace reprise::internal {
namespace {

// Follows reduce buffers through the schedule.
class GradientSweep {
 public:
  explicit GradientSweep(const CheckedSchedule& schedule)
      : schedule_(schedule),
        first_writer_(schedule.plan().buffers.size()),
        carried_(schedule.plan().buffers.size(), false) {}

  Slots<ReduceBuffer> Run() {
    const Schedule& schedule = schedule_.schedule();
    for (const OutstandingReduction& reduction : schedule.start.outstanding) carried_[reduction.buffer.value()] = true;
    for (size_t i = 0; i < schedule.commands.size(); ++i) {
      const CommandId id(static_cast<int64_t>(i));
      if (const auto* reduce = std::get_if<ReduceScatter>(&schedule.commands[i].command)) AddReduce(id, *reduce);
      if (std::holds_alternative<Accumulate>(schedule.commands[i].command)) Extend(id);
      for (const BufferUse& use : schedule.commands[i].uses) {
        CommandId& first = first_writer_[use.buffer.value()];
        if (Writes(use) && !first.valid()) first = id;
      }
    }
    for (const OutstandingReduction& reduction : schedule.end.outstanding) {
      const CommandId first = first_writer_[reduction.buffer.value()];
      if (!first.valid()) continue;
      slots_[reduction.slot].push_back({reduction.unit, reduction.buffer, first, CommandId(), CommandId()});
    }
    for (auto& [slot, gradients] : slots_) {
      std::stable_sort(gradients.begin(), gradients.end(),
                       [](const ReduceBuffer& a, const ReduceBuffer& b) { return a.first_writer < b.first_writer; });
    }
    return std::move(slots_);
  }

 private:
  void AddReduce(CommandId id, const ReduceScatter& reduce) {
    for (const BufferUse& use : schedule_.command(id).uses) {
      if (use.role != Role::kReduceBuffer || !IsTransient(schedule_.plan().buffer(use.buffer).storage)) continue;
      CommandId& first = first_writer_[use.buffer.value()];
      // Neither written nor carried: another group of a gradient that is already counted.
      if (!first.valid() && !carried_[use.buffer.value()]) continue;
      reduced_[use.buffer.value()] = {reduce.slot, slots_[reduce.slot].size()};
      slots_[reduce.slot].push_back({reduce.unit, use.buffer, first, id, id});
      first = CommandId();
      carried_[use.buffer.value()] = false;
    }
  }

  // A sum of all ranks' parts reads this rank's after the reduction.
  void Extend(CommandId id) {
    for (const BufferUse& use : schedule_.command(id).uses) {
      const auto reduced = reduced_.find(use.buffer.value());
      if (use.role != Role::kReduceBuffer || reduced == reduced_.end()) continue;
      const auto& [slot, index] = reduced->second;
      slots_[slot][index].last_reader = id;
    }
  }

  const CheckedSchedule& schedule_;
  Slots<ReduceBuffer> slots_;
  std::map<int64_t, std::pair<int, size_t>> reduced_;  // by BufferId: slot and index of its last reduction
  std::vector<CommandId> first_writer_;                // by BufferId, since its last reduction
  std::vector<bool> carried_;                          // by BufferId: started with, not yet reduced
};

}  // namespace

BufferId GatheredBuffer(const ScheduledCommand& gather) {
  for (const BufferUse& use : gather.uses) {
    if (use.role == Role::kGathered) return use.buffer;
  }
  return BufferId();
}

Slots<Copy> WeightSlots(const CheckedSchedule& schedule) {
  Slots<Copy> slots;
  struct Place {
    int slot = -1;
    size_t index = 0;
  };
  std::vector<Place> latest(schedule.plan().buffers.size());
  const auto add = [&](int slot, const Copy& copy) {
    if (copy.buffer.valid()) latest[copy.buffer.value()] = {slot, slots[slot].size()};
    slots[slot].push_back(copy);
  };
  for (const Resident& resident : schedule.schedule().start.residents) {
    add(resident.slot, {.unit = resident.unit, .buffer = resident.buffer});
  }
  const std::vector<ScheduledCommand>& commands = schedule.schedule().commands;
  for (size_t i = 0; i < commands.size(); ++i) {
    const CommandId id(static_cast<int64_t>(i));
    if (const auto* gather = std::get_if<AllGather>(&commands[i].command)) {
      add(gather->slot, {.unit = gather->unit, .buffer = GatheredBuffer(commands[i]), .gather = id});
    }
    for (const BufferUse& use : commands[i].uses) {
      if (use.role != Role::kParameter) continue;
      const Place& place = latest[use.buffer.value()];
      if (place.slot < 0) continue;
      Copy& copy = slots[place.slot][place.index];
      if (!copy.first_reader.valid()) copy.first_reader = id;
      At(copy.last_readers, commands[i].lane) = id;
    }
  }
  return slots;
}

Slots<ReduceBuffer> GradientSlots(const CheckedSchedule& schedule) { return GradientSweep(schedule).Run(); }

}  // namespace reprise::internal
