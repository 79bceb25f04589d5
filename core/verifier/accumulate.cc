// Check::kForm: every reduction is of its unit's gradients and is accumulated once, at its microbatch, and each group
// has partial norms of its own. Kernels trust a command's position, mode and sizes: a mistake in them is no race but a
// wrong sum, or a norm that is never taken.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/verifier/checks.h"
#include "reprise/core/control_block.h"
#include "reprise/core/norm_ranges.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

constexpr int64_t kDoubleBytes = sizeof(double);

int64_t NormBytes(const FlatGroup& group) { return NormRanges(group.shard_elements) * kDoubleBytes; }

std::string GroupText(const Plan& plan, size_t unit, size_t group) {
  return absl::StrCat("group ", group, " of ", plan.model.units()[unit].name);
}

// ---- the plan ----

// Where a group's partial norms are.
struct NormPlace {
  ByteRange bytes;
  size_t unit = 0, group = 0;
};

absl::Status CheckNormPlace(const Plan& plan, const NormPlace& place) {
  const Buffer& buffer = plan.buffer(plan.norm_partials);
  const int64_t num_bytes = NormBytes(plan.layout.units[place.unit].groups[place.group]);
  const int64_t first = place.bytes.first;
  if (first >= 0 && first % kDoubleBytes == 0 && first <= buffer.num_bytes - num_bytes) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the ", num_bytes, " bytes of partial norms of ",
                                          GroupText(plan, place.unit, place.group), " at ", first,
                                          " are not doubles inside ", buffer.name, ", which has ", buffer.num_bytes));
}

absl::Status CheckNoneOverlap(const Plan& plan, std::vector<NormPlace> places) {
  std::sort(places.begin(), places.end(),
            [](const NormPlace& a, const NormPlace& b) { return a.bytes.first < b.bytes.first; });
  for (size_t i = 1; i < places.size(); ++i) {
    const NormPlace &a = places[i - 1], &b = places[i];
    if (a.bytes.last <= b.bytes.first) continue;
    return absl::InternalError(absl::StrCat(
        "the partial norms of ", GroupText(plan, a.unit, a.group), " and ", GroupText(plan, b.unit, b.group), " share ",
        BytesText(plan, plan.norm_partials, {b.bytes.first, std::min(a.bytes.last, b.bytes.last)})));
  }
  return absl::OkStatus();
}

// ---- one schedule ----

template <class T>
const T* CommandAt(const Schedule& schedule, CommandId id) {
  return id.valid() ? std::get_if<T>(&schedule.commands[id.value()].command) : nullptr;
}

std::vector<BufferUse> UsesAs(const ScheduledCommand& command, Role role) {
  std::vector<BufferUse> uses;
  std::copy_if(command.uses.begin(), command.uses.end(), std::back_inserter(uses),
               [&](const BufferUse& use) { return use.role == role && use.is_own(); });
  return uses;
}

bool Less(const BufferUse& a, const BufferUse& b) {
  const auto key = [](const BufferUse& use) {
    return std::make_tuple(use.buffer, use.offset, use.num_bytes, use.id, use.access);
  };
  return key(a) < key(b);
}

class ScheduleAccumulates {
 public:
  ScheduleAccumulates(const Plan& plan, const Schedule& schedule)
      : plan_(plan), schedule_(schedule), has_gradient_(FindGradients(plan)), reduce_writers_(plan.buffers.size()) {}

  absl::Status Check() {
    CommandId previous;  // on the lane of reductions
    for (size_t i = 0; i < schedule_.commands.size(); ++i) {
      const CommandId id(static_cast<int64_t>(i));
      if (At(id).lane == Lane::kReduceScatter) {
        REPRISE_RETURN_IF_ERROR(CheckPair(previous, id));
        if (const auto* reduce = CommandAt<ReduceScatter>(schedule_, id)) {
          REPRISE_RETURN_IF_ERROR(CheckGradients(id, *reduce));
          REPRISE_RETURN_IF_ERROR(CheckWriters(id, *reduce));
        }
        previous = id;
      }
      for (const BufferUse& use : At(id).uses) {
        if (Writes(use)) reduce_writers_[use.buffer.value()] = id;
      }
    }
    REPRISE_RETURN_IF_ERROR(CheckPair(previous, CommandId()));
    for (size_t i = 0; i < schedule_.commands.size(); ++i) {
      REPRISE_RETURN_IF_ERROR(CheckNorm(CommandId(static_cast<int64_t>(i))));
    }
    return absl::OkStatus();
  }

 private:
  const ScheduledCommand& At(CommandId id) const { return schedule_.commands[id.value()]; }
  std::string Text(CommandId id) const { return CommandText(plan_, schedule_, id); }
  template <class... Parts>
  absl::Status Error(CommandId id, const Parts&... parts) const {
    return absl::InternalError(absl::StrCat(Text(id), " ", parts...));
  }
  // "bytes [0, 256) of x as reduce_buffer 0".
  std::string UseText(const BufferUse& use) const {
    return absl::StrCat(BytesText(plan_, use.buffer, BytesOf(use)), " as ", Name(use.role), " ", use.id);
  }

  // Two neighbours on the lane; `previous` or `id` is invalid before the first and after the last.
  absl::Status CheckPair(CommandId previous, CommandId id) const {
    const auto* const reduce = CommandAt<ReduceScatter>(schedule_, previous);
    const auto* const accumulate = CommandAt<Accumulate>(schedule_, id);
    if (reduce == nullptr && accumulate == nullptr) return absl::OkStatus();
    if (reduce == nullptr) {
      return Error(id, "does not directly follow a reduction on its lane, but ",
                   previous.valid() ? Text(previous) : "nothing");
    }
    if (accumulate == nullptr) {
      return Error(previous, "is not directly followed by its accumulate on its lane, but by ",
                   id.valid() ? Text(id) : "nothing");
    }
    const std::string other = absl::StrCat(", but ", Text(previous), " before it ");
    if (accumulate->unit != reduce->unit) {
      return Error(id, "accumulates ", plan_.model.unit(accumulate->unit).name, other, "reduces ",
                   plan_.model.unit(reduce->unit).name);
    }
    if (accumulate->sum != reduce->sum) {
      return Error(id, "has sum ", Name(accumulate->sum), other, "has ", Name(reduce->sum));
    }
    if (accumulate->position != reduce->position) {
      return Error(id, "is at position ", accumulate->position, other, "is at ", reduce->position);
    }
    REPRISE_RETURN_IF_ERROR(CheckMode(id, *accumulate));
    REPRISE_RETURN_IF_ERROR(CheckSegments(id, *accumulate));
    REPRISE_RETURN_IF_ERROR(CheckGroups(previous, id, *accumulate));
    return CheckOwnParts(previous, id, *accumulate);
  }

  absl::Status CheckMode(CommandId id, const Accumulate& accumulate) const {
    const bool once = plan_.options.reduce == Reduce::kOncePerStep;
    if (once && schedule_.microbatches > 0) {
      return Error(id, "is in a graph of microbatches, but the plan reduces once per step");
    }
    if (accumulate.mode == (once ? AccumulateMode::kAlwaysAssign : AccumulateMode::kByMicrobatch)) {
      return absl::OkStatus();
    }
    return Error(id, once ? "does not always assign, but the plan reduces once per step"
                          : "does not assign by microbatch, but the plan reduces every microbatch");
  }

  // Every element that has a gradient is added, once, and nothing else.
  absl::Status CheckSegments(CommandId id, const Accumulate& accumulate) const {
    std::vector<GroupSegment> needed;
    const std::vector<FlatGroup>& groups = plan_.layout.units[accumulate.unit.value()].groups;
    for (size_t g = 0; g < groups.size(); ++g) {
      for (const PlacedParameter& placed : groups[g].parameters) {
        if (!has_gradient_[placed.parameter.value()] || placed.num_elements == 0) continue;
        needed.push_back({static_cast<int>(g), placed.first_element, placed.num_elements});
      }
    }
    if (accumulate.segments == needed) return absl::OkStatus();
    return Error(id, "adds other segments than the ", needed.size(), " that have gradients in ",
                 plan_.model.unit(accumulate.unit).name);
  }

  // What the reduction delivers of each group goes to the group's accumulator, and its norm to the group's place.
  absl::Status CheckGroups(CommandId reduce, CommandId id, const Accumulate& accumulate) const {
    const int64_t unit = accumulate.unit.value();
    const UnitBuffers& buffers = plan_.unit_buffers[unit];
    const std::vector<BufferUse> delivered = UsesAs(At(reduce), Role::kReceived);
    REPRISE_RETURN_IF_ERROR(CheckDelivered(reduce, unit, delivered));
    if (!delivered.empty() && !plan_.norm_partials.valid()) {
      return Error(id, "takes norms, but the plan has no buffer of partial norms");
    }
    for (const BufferUse& received : delivered) {
      const FlatGroup& group = plan_.layout.units[unit].groups[received.id];
      if (!group.trainable) return Error(reduce, "reduces group ", received.id, ", which is frozen");
      const int parts = ReceivedParts(plan_, accumulate.sum);
      const int64_t num_bytes = parts * group.shard_elements * SizeOf(plan_.reduce_dtype(group));
      if (received.num_bytes != num_bytes || received.access != Access::kAssign) {
        return Error(reduce, Name(received.access), "s ", UseText(received), ", but must assign ", num_bytes,
                     " bytes, which are ", parts, " * ", group.shard_elements, " elements");
      }
      BufferUse read = received;
      read.access = Access::kRead;
      REPRISE_RETURN_IF_ERROR(CheckOnly(id, read));
      REPRISE_RETURN_IF_ERROR(
          CheckOnly(id, {buffers.accumulators[received.id], 0, group.shard_elements * SizeOf(kAccumulateDType),
                         Access::kUpdate, Role::kAccumulator, received.id}));
      REPRISE_RETURN_IF_ERROR(CheckOnly(id, {plan_.norm_partials, buffers.norm_partials[received.id], NormBytes(group),
                                             Access::kUpdate, Role::kNormPartials, received.id}));
    }
    for (const BufferUse& use : At(id).uses) {
      if (use.role != Role::kReceived && use.role != Role::kAccumulator && use.role != Role::kNormPartials) continue;
      const bool has_part = std::any_of(delivered.begin(), delivered.end(),
                                        [&](const BufferUse& received) { return received.id == use.id; });
      if (!has_part) return Error(id, "uses ", UseText(use), ", but ", Text(reduce), " delivers no such group");
    }
    return absl::OkStatus();
  }

  // Every group of which the reduction reads a gradient is delivered, once.
  absl::Status CheckDelivered(CommandId reduce, int64_t unit, const std::vector<BufferUse>& delivered) const {
    std::set<int32_t> read;  // groups
    for (const BufferUse& use : UsesAs(At(reduce), Role::kReduceBuffer)) read.insert(use.id);
    const std::vector<FlatGroup>& groups = plan_.layout.units[unit].groups;
    for (size_t group = 0; group < groups.size(); ++group) {
      const bool needed = groups[group].shard_elements > 0 && read.contains(static_cast<int32_t>(group));
      const auto times = std::count_if(delivered.begin(), delivered.end(), [&](const BufferUse& received) {
        return received.id == static_cast<int32_t>(group);
      });
      if (times == (needed ? 1 : 0)) continue;
      return Error(reduce, "delivers ", GroupText(plan_, unit, group), " ", times, " times, but must ",
                   needed ? "once" : "not");
    }
    return absl::OkStatus();
  }

  // Of this role and id the command has this use and no other.
  absl::Status CheckOnly(CommandId id, const BufferUse& needed) const {
    std::vector<BufferUse> uses = UsesAs(At(id), needed.role);
    std::erase_if(uses, [&](const BufferUse& use) { return use.id != needed.id; });
    if (uses.size() != 1) {
      return Error(id, "has ", uses.size(), " uses as ", Name(needed.role), " ", needed.id, ", not one");
    }
    if (uses[0] == needed) return absl::OkStatus();
    return Error(id, Name(uses[0].access), "s ", UseText(uses[0]), ", but must ", Name(needed.access), " ",
                 BytesText(plan_, needed.buffer, BytesOf(needed)));
  }

  // The reduction reads the gradients of its unit, each where transports look for it, and no others.
  absl::Status CheckGradients(CommandId id, const ReduceScatter& reduce) const {
    const absl::string_view unit = plan_.model.unit(reduce.unit).name;
    std::map<int32_t, BufferUse> reads;  // by group
    for (const BufferUse& use : UsesAs(At(id), Role::kReduceBuffer)) {
      if (!reads.emplace(use.id, use).second) return Error(id, "uses ", UseText(use), " beside another part of it");
    }
    if (reads.empty()) return Error(id, "reads no gradient of ", unit);
    const BufferId buffer = reads.begin()->second.buffer;
    REPRISE_RETURN_IF_ERROR(CheckSource(id, reduce, buffer));
    const std::vector<FlatGroup>& groups = plan_.layout.units[reduce.unit.value()].groups;
    for (size_t g = 0; g < groups.size(); ++g) {
      const int32_t group = static_cast<int32_t>(g);
      const auto has = [&](const PlacedParameter& placed) {
        return has_gradient_[placed.parameter.value()] && placed.num_elements > 0;
      };
      const bool needed = std::any_of(groups[g].parameters.begin(), groups[g].parameters.end(), has);
      const auto read = reads.find(group);
      if (needed != (read != reads.end())) {
        return Error(id, needed ? "does not read " : "reads ", GroupText(plan_, reduce.unit.value(), g), " of which ",
                     needed ? "some parameter has a gradient" : "no parameter has a gradient");
      }
      if (!needed) continue;
      const ByteRange bytes = ReduceGroup(plan_, reduce.unit, group);
      const BufferUse must = {buffer, bytes.first, bytes.last - bytes.first, Access::kRead, Role::kReduceBuffer, group};
      if (read->second == must) continue;
      return Error(id, Name(read->second.access), "s ", UseText(read->second), ", but must read ",
                   BytesText(plan_, buffer, bytes));
    }
    return absl::OkStatus();
  }

  // A reduce buffer takes a slot. A unsharded gradient takes none, and is as it was summed.
  absl::Status CheckSource(CommandId id, const ReduceScatter& reduce, BufferId buffer) const {
    const Buffer& source = plan_.buffer(buffer);
    if (source.storage == Storage::kCommunicating) {
      if (reduce.slot >= 0) return absl::OkStatus();
      return Error(id, "names no gradient slot, but ", source.name, " takes one");
    }
    const int64_t unit = reduce.unit.value();
    if (source.storage != Storage::kGradients || buffer != plan_.unit_buffers[unit].unsharded_gradient) {
      return Error(id, "reads ", source.name, " in storage ", Name(source.storage),
                   ", which is neither a reduce buffer nor the unsharded gradient of ", plan_.model.units()[unit].name);
    }
    if (reduce.slot >= 0) return Error(id, "names a gradient slot, but ", source.name, " takes none");
    const std::vector<FlatGroup>& groups = plan_.layout.units[unit].groups;
    for (size_t group = 0; group < groups.size(); ++group) {
      if (!groups[group].trainable || plan_.reduce_dtype(groups[group]) == kAccumulateDType) continue;
      return Error(id, "reads ", GroupText(plan_, unit, group), " as ", Name(plan_.reduce_dtype(groups[group])),
                   ", but ", source.name, " holds ", Name(kAccumulateDType));
    }
    if (reduce.position == 0) return absl::OkStatus();
    return Error(id, "is at position ", reduce.position, ", but ", source.name, " is of a whole step, which is at 0");
  }

  // An exchange delivers the others' parts alone: a rank's own is read where the reduction read it for the others.
  absl::Status CheckOwnParts(CommandId reduce, CommandId id, const Accumulate& accumulate) const {
    std::vector<BufferUse> reduced = UsesAs(At(reduce), Role::kReduceBuffer), own = UsesAs(At(id), Role::kReduceBuffer);
    if (accumulate.sum == Sum::kNccl) {
      if (own.empty()) return absl::OkStatus();
      return Error(id, "uses ", UseText(own[0]), ", but ", Text(reduce), " delivers sums");
    }
    std::sort(reduced.begin(), reduced.end(), Less);
    std::sort(own.begin(), own.end(), Less);
    const auto [missing, extra] = std::mismatch(reduced.begin(), reduced.end(), own.begin(), own.end());
    if (missing != reduced.end() && (extra == own.end() || Less(*missing, *extra))) {
      return Error(id, "does not ", Name(missing->access), " ", UseText(*missing), ", as ", Text(reduce),
                   " does, and so has not its own part");
    }
    if (extra == own.end()) return absl::OkStatus();
    return Error(id, Name(extra->access), "s ", UseText(*extra), ", which ", Text(reduce), " does not");
  }

  // A norm is of all gradients.
  absl::Status CheckNorm(CommandId id) const {
    if (CommandAt<SumNorm>(schedule_, id) == nullptr || !plan_.norm_partials.valid()) return absl::OkStatus();
    const int64_t num_bytes = plan_.buffer(plan_.norm_partials).num_bytes;
    const std::vector<BufferUse>& uses = At(id).uses;
    const bool reads_all = std::any_of(uses.begin(), uses.end(), [&](const BufferUse& use) {
      return use.role == Role::kNormPartials && use.buffer == plan_.norm_partials && use.offset == 0 &&
             use.num_bytes == num_bytes && use.access != Access::kAssign;
    });
    if (!reads_all) return Error(id, "does not read all ", num_bytes, " bytes of partial norms");
    const int64_t parts_bytes = (int64_t{1} + plan_.world_size()) * static_cast<int64_t>(sizeof(NormPart));
    if (!plan_.norm_parts.valid() || plan_.norm_parts.value() >= static_cast<int64_t>(plan_.buffers.size())) {
      return Error(id, "needs a buffer of norm parts, but the plan has none");
    }
    return CheckOnly(id, {plan_.norm_parts, 0, parts_bytes, Access::kAssign, Role::kNormParts});
  }

  // The reduction is of the microbatch that wrote its gradient. What the schedule starts with has no writer.
  absl::Status CheckWriters(CommandId id, const ReduceScatter& reduce) const {
    for (const BufferUse& use : At(id).uses) {
      if (use.role != Role::kReduceBuffer) continue;
      const CommandId writer = reduce_writers_[use.buffer.value()];
      const auto* const backward = CommandAt<Backward>(schedule_, writer);
      const auto* const pack = CommandAt<PackGradients>(schedule_, writer);
      if (backward == nullptr && pack == nullptr) continue;
      const int position = backward != nullptr ? backward->position : pack->position;
      if (position == reduce.position) continue;
      return Error(id, "is at position ", reduce.position, ", but ", Text(writer), " wrote its gradient at ", position);
    }
    return absl::OkStatus();
  }

  const Plan& plan_;
  const Schedule& schedule_;
  const std::vector<bool> has_gradient_;
  std::vector<CommandId> reduce_writers_;  // by buffer: the last command so far that wrote it
};

}  // namespace

absl::Status CheckAccumulates(const Plan& plan) {
  if (!plan.norm_partials.valid()) return absl::OkStatus();  // a forward plan
  const auto exists = [&](BufferId id) { return id.valid() && id.value() < static_cast<int64_t>(plan.buffers.size()); };
  if (!exists(plan.norm_partials)) {
    return absl::InternalError(
        absl::StrCat("partial norms are in buffer ", plan.norm_partials.value(), ", which does not exist"));
  }
  std::vector<NormPlace> places;
  for (size_t unit = 0; unit < plan.layout.units.size(); ++unit) {
    const std::vector<FlatGroup>& groups = plan.layout.units[unit].groups;
    const UnitBuffers& buffers = plan.unit_buffers[unit];
    if (buffers.accumulators.size() != groups.size() || buffers.norm_partials.size() != groups.size()) {
      return absl::InternalError(absl::StrCat(plan.model.units()[unit].name, " has ", buffers.accumulators.size(),
                                              " accumulators and ", buffers.norm_partials.size(),
                                              " places of partial norms for ", groups.size(), " groups"));
    }
    for (size_t group = 0; group < groups.size(); ++group) {
      if (!groups[group].trainable) continue;
      if (!exists(buffers.accumulators[group])) {
        return absl::InternalError(absl::StrCat("the accumulator of ", GroupText(plan, unit, group), " is buffer ",
                                                buffers.accumulators[group].value(), ", which does not exist"));
      }
      NormPlace place = {.bytes = {.first = buffers.norm_partials[group]}, .unit = unit, .group = group};
      REPRISE_RETURN_IF_ERROR(CheckNormPlace(plan, place));
      place.bytes.last = place.bytes.first + NormBytes(groups[group]);
      if (place.bytes.last > place.bytes.first) places.push_back(place);
    }
  }
  return CheckNoneOverlap(plan, std::move(places));
}

absl::Status CheckAccumulates(const Plan& plan, const Schedule& schedule) {
  return ScheduleAccumulates(plan, schedule).Check();
}

}  // namespace reprise::internal
