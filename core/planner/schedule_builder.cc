#include "core/planner/schedule_builder.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace reprise::internal {
namespace {

constexpr std::array<WaitReason, 4> kReasons = {WaitReason::kData, WaitReason::kOrder, WaitReason::kFork,
                                                WaitReason::kJoin};

void Merge(Clock& clock, const Clock& other) {
  for (int i = 0; i < kNumLanes; ++i) clock[i] = std::max(clock[i], other[i]);
}

}  // namespace

ScheduleBuilder::ScheduleBuilder() {
  forked_[static_cast<int>(Lane::kCompute)] = true;
  Add(Begin{}, Lane::kCompute, {});
}

CommandId ScheduleBuilder::Add(Command command, Lane lane, std::vector<BufferUse> uses,
                               const std::vector<CommandId>& after) {
  const CommandId id(static_cast<int64_t>(commands_.size()));
  std::array<Requirement, 4> requirements = {kNothing, kNothing, kNothing, kNothing};
  auto& [data, order, fork, join] = requirements;
  commands_.push_back({std::move(command), lane, std::move(uses), {}});
  for (const BufferUse& use : commands_.back().uses) Track(id, lane, use, data);
  for (CommandId earlier : after) Require(earlier, order);
  if (!std::exchange(forked_[static_cast<int>(lane)], true)) Require(CommandId(0), fork);
  if (std::holds_alternative<End>(commands_.back().command)) {
    for (int from = 0; from < kNumLanes; ++from) join[from] = order_.Tail(static_cast<Lane>(from))[from];
  }
  std::vector<Wait> waits = Reduce(lane, requirements);
  for (size_t i = 0; i < waits.size(); ++i) {
    const int from = static_cast<int>(commands_[waits[i].command.value()].lane);
    kept_[from][static_cast<int>(lane)].push_back({waits[i].command.value(), id.value(), i});
  }
  order_.Add(lane, waits);
  commands_.back().waits = std::move(waits);
  return id;
}

std::vector<ScheduledCommand> ScheduleBuilder::Finish() {
  Add(End{}, Lane::kCompute, {});
  return std::move(commands_);
}

ScheduleBuilder::Ranges::iterator ScheduleBuilder::CutAt(Ranges& ranges, int64_t offset) {
  const auto after = ranges.lower_bound(offset);
  if (after != ranges.end() && after->first == offset) return after;
  return ranges.emplace_hint(after, offset, after == ranges.begin() ? Touched{} : std::prev(after)->second);
}

void ScheduleBuilder::Require(CommandId command, Requirement& requirement) const {
  int32_t& latest = requirement[static_cast<int>(commands_[command.value()].lane)];
  latest = std::max(latest, command.value());
}

void ScheduleBuilder::RequireFromOther(CommandId command, Lane lane, Requirement& requirement) const {
  if (command.valid() && commands_[command.value()].lane != lane) Require(command, requirement);
}

void ScheduleBuilder::Track(CommandId id, Lane lane, const BufferUse& use, Requirement& data) {
  if (use.num_bytes == 0) return;
  const size_t buffer = static_cast<size_t>(use.buffer.value());
  if (buffer >= touched_.size()) touched_.resize(buffer + 1);
  Ranges& ranges = touched_[buffer];
  const auto end = CutAt(ranges, use.offset + use.num_bytes);
  const auto begin = CutAt(ranges, use.offset);
  const bool writes = use.access != Access::kRead;
  for (auto range = begin; range != end; ++range) {
    Touched& touched = range->second;
    RequireFromOther(touched.writer, lane, data);
    for (CommandId reader : touched.readers) {
      if (writes) RequireFromOther(reader, lane, data);
    }
    if (!writes) touched.readers[static_cast<int>(lane)] = id;
  }
  if (!writes) return;
  begin->second = {.writer = id};
  ranges.erase(std::next(begin), end);
}

std::vector<Wait> ScheduleBuilder::Reduce(Lane lane, const std::array<Requirement, 4>& requirements) {
  const Clock tail = order_.Tail(lane);
  Requirement needed = kNothing;
  for (const Requirement& requirement : requirements) Merge(needed, requirement);
  // A lane's requirement is dropped where the lane itself, or the wait on another lane, implies it.
  const auto implied_by_other_wait = [&](int from) {
    for (int other = 0; other < kNumLanes; ++other) {
      if (other == from || needed[other] <= tail[other]) continue;
      if (order_.End(CommandId(needed[other]))[from] >= needed[from]) return true;
    }
    return false;
  };
  std::vector<int> kept;
  for (int from = 0; from < kNumLanes; ++from) {
    if (needed[from] > tail[from] && !implied_by_other_wait(from)) kept.push_back(from);
  }
  std::vector<Wait> waits;
  for (int from : kept) {
    Clock without = tail;
    for (int other : kept) {
      if (other != from) Merge(without, order_.End(CommandId(needed[other])));
    }
    for (size_t r = 0; r < kReasons.size(); ++r) {
      bool unmet = false;
      for (int i = 0; i < kNumLanes; ++i) unmet = unmet || requirements[r][i] > without[i];
      if (!unmet) continue;
      waits.push_back({CommandId(needed[from]), kReasons[r]});
      break;
    }
  }
  Clock waited = kNothing;
  for (int from : kept) Merge(waited, order_.End(CommandId(needed[from])));
  for (size_t r = 0; r < kReasons.size(); ++r) {
    for (int from = 0; from < kNumLanes; ++from) {
      const int32_t command = requirements[r][from];
      if (command > waited[from] && command <= tail[from])
        Strengthen(lane, command, static_cast<Lane>(from), kReasons[r]);
    }
  }
  std::sort(waits.begin(), waits.end(), [](const Wait& a, const Wait& b) { return a.command < b.command; });
  return waits;
}

void ScheduleBuilder::Strengthen(Lane lane, int32_t command, Lane from, WaitReason reason) {
  const std::vector<KeptWait>& waits = kept_[static_cast<int>(from)][static_cast<int>(lane)];
  if (waits.empty() || waits.back().source < command) return;                  // met through a third lane
  if (waits.size() >= 2 && waits[waits.size() - 2].source >= command) return;  // met twice
  Wait& wait = commands_[waits.back().target].waits[waits.back().index];
  wait.reason = std::min(wait.reason, reason);
}

}  // namespace reprise::internal
