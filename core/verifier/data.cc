// Check::kData: conflicting uses of one buffer are ordered, and every read finds its bytes written.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/verifier/byte_map.h"
#include "core/verifier/checks.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// What the sweep knows of a byte. Earlier writers and readers than these need no second look: the writer was found to
// be ordered after them.
struct ByteUses {
  bool written = false;   // holds a value of this schedule, or one that the schedule starts with
  bool assigned = false;  // `writer` assigned it rather than updated it
  CommandId writer = {};
  LaneCommands readers = {};  // since the writer, the last on each lane
};

// The commands that use one buffer, in issue order.
class BufferSweep {
 public:
  enum class Start { kEmpty, kWritten };
  BufferSweep(const CheckedSchedule& schedule, BufferId buffer, Start start)
      : schedule_(schedule),
        buffer_(buffer),
        num_bytes_(schedule.plan().buffer(buffer).num_bytes),
        bytes_(num_bytes_, ByteUses{.written = start == Start::kWritten}) {}

  absl::Status Run() {
    const absl::Span<const UseAt> uses = schedule_.UsesOf(buffer_);
    for (size_t first = 0, last = 0; first < uses.size(); first = last) {
      while (last < uses.size() && uses[last].command == uses[first].command) ++last;
      REPRISE_RETURN_IF_ERROR(Add(uses[first].command, uses.subspan(first, last - first)));
    }
    return absl::OkStatus();
  }

 private:
  // All uses are compared with what came before the command, then they take its place.
  absl::Status Add(CommandId command, absl::Span<const UseAt> uses) {
    if (StartsCopy(command, uses)) {
      // A new copy: what is left of the one before is not a value, though it may still be read.
      bytes_.Visit(0, num_bytes_, [](int64_t, int64_t, ByteUses& bytes) { bytes.written = false; });
    }
    for (const UseAt& use : uses) REPRISE_RETURN_IF_ERROR(Compare(command, use));
    for (const Access access : {Access::kUpdate, Access::kAssign}) {
      for (const UseAt& use : uses) {
        if (use.use->access != access) continue;
        const ByteUses written = {.written = true, .assigned = access == Access::kAssign, .writer = command};
        bytes_.Assign(use.use->offset, use.use->offset + use.use->num_bytes, written);
      }
    }
    for (const UseAt& use : uses) REPRISE_RETURN_IF_ERROR(AddRead(command, *use.use));
    return absl::OkStatus();
  }

  bool StartsCopy(CommandId command, absl::Span<const UseAt> uses) const {
    return std::holds_alternative<AllGather>(schedule_.command(command).command) &&
           std::any_of(uses.begin(), uses.end(), [](const UseAt& use) { return use.use->access == Access::kAssign; });
  }

  absl::Status Compare(CommandId command, const UseAt& at) {
    const BufferUse& use = *at.use;
    absl::Status status;
    bytes_.Visit(use.offset, use.offset + use.num_bytes, [&](int64_t first, int64_t last, const ByteUses& bytes) {
      if (!status.ok()) return;
      const CommandOrder& order = schedule_.order();
      CommandId other;
      if (!order.Before(bytes.writer, command)) {
        other = bytes.writer;
      } else if (Writes(use)) {
        other = order.FirstNotBefore(bytes.readers, command);
      }
      if (other.valid()) status = Unordered(other, command, use, {first, last});
    });
    for (const ByteRange& needed : schedule_.NeededBytes(at)) {
      bytes_.Visit(needed.first, needed.last, [&](int64_t first, int64_t last, const ByteUses& bytes) {
        if (status.ok() && !bytes.written) status = Unwritten(command, use, {first, last});
      });
    }
    return status;
  }

  absl::Status AddRead(CommandId command, const BufferUse& use) {
    if (use.access != Access::kRead) return absl::OkStatus();
    const Lane lane = schedule_.command(command).lane;
    absl::Status status;
    bytes_.Visit(use.offset, use.offset + use.num_bytes, [&](int64_t first, int64_t last, ByteUses& bytes) {
      At(bytes.readers, lane) = command;
      if (!status.ok() || bytes.writer != command || !bytes.assigned) return;
      status = absl::InternalError(absl::StrCat(schedule_.Text(command), " both reads and assigns ",
                                                BytesText(schedule_.plan(), buffer_, {first, last})));
    });
    return status;
  }

  absl::Status Unordered(CommandId earlier, CommandId later, const BufferUse& use, ByteRange range) const {
    return absl::InternalError(absl::StrCat(schedule_.Text(later), " ",
                                            use.access == Access::kRead ? "reads" : "writes", " ",
                                            BytesText(schedule_.plan(), buffer_, range), " as ", Name(use.role),
                                            ", but no wait orders it after ", schedule_.Text(earlier)));
  }

  absl::Status Unwritten(CommandId command, const BufferUse& use, ByteRange range) const {
    return absl::InternalError(absl::StrCat(schedule_.Text(command), " reads ",
                                            BytesText(schedule_.plan(), buffer_, range), " as ", Name(use.role),
                                            ", which nothing wrote before"));
  }

  const CheckedSchedule& schedule_;
  const BufferId buffer_;
  const int64_t num_bytes_;
  ByteMap<ByteUses> bytes_;
};

// By BufferId: what holds values before the schedule's first command. Begin is not taken for their writer: then a
// missing fork would show as missing data.
std::vector<BufferSweep::Start> Starts(const CheckedSchedule& schedule) {
  using Start = BufferSweep::Start;
  const Plan& plan = schedule.plan();
  const ScheduleState& state = schedule.schedule().start;
  std::vector<Start> starts(plan.buffers.size(), Start::kWritten);
  for (size_t i = 0; i < starts.size(); ++i) {
    if (IsTransient(plan.buffers[i].storage)) starts[i] = Start::kEmpty;
  }
  for (const Resident& resident : state.residents) starts[resident.buffer.value()] = Start::kWritten;
  for (const OutstandingReduction& reduction : state.outstanding) starts[reduction.buffer.value()] = Start::kWritten;
  if (state.gradients) return starts;
  for (const UnitBuffers& unit : plan.unit_buffers) {
    if (unit.unsharded_gradient.valid()) starts[unit.unsharded_gradient.value()] = Start::kEmpty;
  }
  return starts;
}

}  // namespace

absl::Status CheckData(const CheckedSchedule& schedule) {
  const std::vector<BufferSweep::Start> starts = Starts(schedule);
  for (size_t i = 0; i < starts.size(); ++i) {
    const BufferId buffer(static_cast<int64_t>(i));
    if (schedule.UsesOf(buffer).empty()) continue;
    REPRISE_RETURN_IF_ERROR(BufferSweep(schedule, buffer, starts[i]).Run());
  }
  return absl::OkStatus();
}

}  // namespace reprise::internal
