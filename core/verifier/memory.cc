// Check::kMemory: buffers that share bytes are never in use at once.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/verifier/byte_map.h"
#include "core/verifier/checks.h"

namespace reprise::internal {
namespace {

// The commands from the first assignment of a buffer to the last use before its bytes hold nothing of value.
struct ValueLife {
  BufferId buffer;
  LaneCommands first = {}, last = {};  // by lane

  void Add(Lane lane, CommandId command) {
    if (!At(first, lane).valid()) At(first, lane) = command;
    At(last, lane) = command;
  }
  void Append(const ValueLife& next) {
    for (int lane = 0; lane < kNumLanes; ++lane) {
      if (!first[lane].valid()) first[lane] = next.first[lane];
      last[lane] = std::max(last[lane], next.last[lane]);
    }
  }
  CommandId start() const {
    CommandId earliest;
    for (const CommandId command : first) {
      if (command.valid() && (!earliest.valid() || command < earliest)) earliest = command;
    }
    return earliest;
  }
};

// A pair that shows that not all of `earlier` is complete before any of `later`; invalid ids if there is none.
struct UnorderedPair {
  CommandId earlier, later;
};
UnorderedPair FindUnordered(const CommandOrder& order, const ValueLife& earlier, const ValueLife& later) {
  for (const CommandId first : later.first) {
    if (!first.valid()) continue;
    const CommandId last = order.FirstNotBefore(earlier.last, first);
    if (last.valid()) return {last, first};
  }
  return {};
}

// Bytes of value in the buffers that live before or after a schedule, by BufferId; empty elsewhere.
std::vector<std::vector<ByteRange>> HeldBytes(const CheckedSchedule& schedule, const ScheduleState& state) {
  const Plan& plan = schedule.plan();
  std::vector<std::vector<ByteRange>> held(plan.buffers.size());
  for (const Resident& resident : state.residents) {
    held[resident.buffer.value()] = {{0, plan.buffer(resident.buffer).num_bytes}};
  }
  for (const OutstandingReduction& reduction : state.outstanding) {
    held[reduction.buffer.value()] = schedule.ReduceBytes(reduction.unit);
  }
  return held;
}

// Counts the bytes of a buffer that a later command needs, going backwards through its uses.
class NeededSweep {
 public:
  NeededSweep(const CheckedSchedule& schedule, int64_t num_bytes)
      : schedule_(schedule), num_bytes_(num_bytes), needed_(num_bytes, false) {}

  int64_t count() const { return count_; }
  void Set(ByteRange range, bool value) {
    needed_.Visit(range.first, range.last, [&](int64_t first, int64_t last, bool was) {
      if (was != value) count_ += value ? last - first : first - last;
    });
    needed_.Assign(range.first, range.last, value);
  }
  void StepOver(const Command& command, absl::Span<const UseAt> uses) {
    // A gather starts a copy: the gaps between its groups are of no value before it either.
    const bool gathers = std::holds_alternative<AllGather>(command);
    for (const UseAt& use : uses) {
      if (use.use->access == Access::kAssign) Set(gathers ? ByteRange{0, num_bytes_} : BytesOf(*use.use), false);
    }
    for (const UseAt& use : uses) {
      for (const ByteRange& range : schedule_.NeededBytes(use)) Set(range, true);
    }
  }

 private:
  const CheckedSchedule& schedule_;
  const int64_t num_bytes_;
  ByteMap<bool> needed_;
  int64_t count_ = 0;
};

// For each use of the buffer, whether no byte is of value just before its command, so that a life may start there.
std::vector<bool> FindStarts(const CheckedSchedule& schedule, BufferId buffer,
                             const std::vector<ByteRange>& held_at_end) {
  const absl::Span<const UseAt> uses = schedule.UsesOf(buffer);
  NeededSweep needed(schedule, schedule.plan().buffer(buffer).num_bytes);
  for (const ByteRange& range : held_at_end) needed.Set(range, true);
  std::vector<bool> starts(uses.size(), false);
  for (size_t end = uses.size(), begin = end; end > 0; end = begin) {
    const CommandId command = uses[end - 1].command;
    while (begin > 0 && uses[begin - 1].command == command) --begin;
    needed.StepOver(schedule.command(command).command, uses.subspan(begin, end - begin));
    starts[begin] = needed.count() == 0;
  }
  return starts;
}

// A life that could start while the one before it may still run is one life with it, so that the lives of one buffer
// are ordered.
void AddLives(const CheckedSchedule& schedule, BufferId buffer, const std::vector<ByteRange>& held_at_start,
              const std::vector<ByteRange>& held_at_end, std::vector<ValueLife>& lives) {
  const absl::Span<const UseAt> uses = schedule.UsesOf(buffer);
  const std::vector<bool> starts = FindStarts(schedule, buffer, held_at_end);
  std::vector<ValueLife> found(1, ValueLife{.buffer = buffer});
  if (!held_at_start.empty()) found.back().Add(Lane::kCompute, schedule.first_command());
  for (size_t i = 0; i < uses.size(); ++i) {
    if (starts[i] && found.back().start().valid()) found.push_back({.buffer = buffer});
    found.back().Add(schedule.command(uses[i].command).lane, uses[i].command);
  }
  if (!held_at_end.empty()) found.back().Add(Lane::kCompute, schedule.last_command());
  if (!found.back().start().valid()) return;
  const size_t first = lives.size();
  for (ValueLife life : found) {
    while (lives.size() > first && FindUnordered(schedule.order(), lives.back(), life).later.valid()) {
      lives.back().Append(life);
      life = lives.back();
      lives.pop_back();
    }
    lives.push_back(life);
  }
}

std::vector<ValueLife> FindLives(const CheckedSchedule& schedule) {
  const Plan& plan = schedule.plan();
  const std::vector<std::vector<ByteRange>> at_start = HeldBytes(schedule, schedule.schedule().start);
  const std::vector<std::vector<ByteRange>> at_end = HeldBytes(schedule, schedule.schedule().end);
  std::vector<ValueLife> lives;
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    if (!IsTransient(plan.buffers[i].storage) || plan.buffers[i].num_bytes == 0) continue;
    AddLives(schedule, BufferId(static_cast<int64_t>(i)), at_start[i], at_end[i], lives);
  }
  std::stable_sort(lives.begin(), lives.end(),
                   [](const ValueLife& a, const ValueLife& b) { return a.start() < b.start(); });
  return lives;
}

ByteRange BytesOf(const Buffer& buffer) { return {buffer.offset, buffer.offset + buffer.num_bytes}; }

std::string SharedText(const Plan& plan, BufferId a, BufferId b, Storage storage) {
  const ByteRange of_a = BytesOf(plan.buffer(a)), of_b = BytesOf(plan.buffer(b));
  return absl::StrCat(plan.buffer(a).name, " and ", plan.buffer(b).name, " share bytes [",
                      std::max(of_a.first, of_b.first), ", ", std::min(of_a.last, of_b.last), ") of storage ",
                      Name(storage));
}

}  // namespace

absl::Status CheckPersistentBuffers(const Plan& plan) {
  std::vector<BufferId> by_offset;
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& buffer = plan.buffers[i];
    if (IsTransient(buffer.storage) || buffer.storage == Storage::kExternal || buffer.num_bytes == 0) continue;
    by_offset.push_back(BufferId(static_cast<int64_t>(i)));
  }
  std::stable_sort(by_offset.begin(), by_offset.end(), [&](BufferId a, BufferId b) {
    const Buffer &first = plan.buffer(a), &second = plan.buffer(b);
    return first.storage != second.storage ? first.storage < second.storage : first.offset < second.offset;
  });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const Buffer &first = plan.buffer(by_offset[i - 1]), &second = plan.buffer(by_offset[i]);
    if (first.storage != second.storage || BytesOf(first).last <= second.offset) continue;
    return absl::InternalError(absl::StrCat(SharedText(plan, by_offset[i - 1], by_offset[i], first.storage),
                                            ", which is persistent: both would be in use at once"));
  }
  return absl::OkStatus();
}

// Lives are taken in issue order of their starts, and each is compared with the latest life on each of its bytes. That
// is enough: a life that is ordered after the latest one is ordered after all that this one was ordered after.
absl::Status CheckLives(const CheckedSchedule& schedule) {
  const Plan& plan = schedule.plan();
  const std::vector<ValueLife> lives = FindLives(schedule);
  for (const Storage storage : {Storage::kCommunicating, Storage::kLocal}) {
    ByteMap<const ValueLife*> latest(plan.memory.num_bytes[static_cast<int>(storage)], nullptr);
    for (const ValueLife& life : lives) {
      const Buffer& buffer = plan.buffer(life.buffer);
      if (buffer.storage != storage) continue;
      absl::Status status;
      latest.Visit(buffer.offset, buffer.offset + buffer.num_bytes, [&](int64_t, int64_t, const ValueLife* before) {
        if (!status.ok() || before == nullptr || before->buffer == life.buffer) return;
        const UnorderedPair pair = FindUnordered(schedule.order(), *before, life);
        if (!pair.later.valid()) return;
        status = absl::InternalError(absl::StrCat(SharedText(plan, before->buffer, life.buffer, storage), ", but ",
                                                  schedule.Text(pair.later), ", which uses ", buffer.name,
                                                  ", is not ordered after ", schedule.Text(pair.earlier),
                                                  ", which uses ", plan.buffer(before->buffer).name));
      });
      if (!status.ok()) return status;
      latest.Assign(buffer.offset, buffer.offset + buffer.num_bytes, &life);
    }
  }
  return absl::OkStatus();
}

}  // namespace reprise::internal
