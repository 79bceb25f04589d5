#include "tests/graph/plan_mutations.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/testing/field_mutation.h"
#include "tests/testing/rearranged_schedule.h"

namespace reprise::testing {
namespace {

constexpr int kRederivePercent = 75;

template <class List>
size_t AnyIndex(const List& list, Random& random) {
  return static_cast<size_t>(random.Below(static_cast<int64_t>(list.size())));
}

// Two commands of one kind, or the same one twice.
std::pair<size_t, size_t> TwoOfAKind(const Schedule& schedule, Random& random) {
  const size_t a = AnyIndex(schedule.commands, random);
  std::vector<size_t> alike;
  for (size_t b = 0; b < schedule.commands.size(); ++b) {
    if (schedule.commands[b].command.index() == schedule.commands[a].command.index()) alike.push_back(b);
  }
  return {a, alike[AnyIndex(alike, random)]};
}

// All uses of the schedule, or of one command.
std::vector<BufferUse*> UsesOf(Schedule& schedule) {
  std::vector<BufferUse*> uses;
  for (ScheduledCommand& command : schedule.commands) {
    for (BufferUse& use : command.uses) uses.push_back(&use);
  }
  return uses;
}

template <class T>
void ChangeField(T& of, Random& random) {
  T copy = of;
  FieldMutation count(-1, random);
  count.Visit(copy);
  if (count.count() > 0) FieldMutation(random.Below(count.count()), random).Visit(of);
}

void ChangeAnyField(Plan& plan, Random& random) {
  FieldMutation count(-1, random);
  count.VisitDecided(plan);
  FieldMutation(random.Below(count.count()), random).VisitDecided(plan);
}

void RenameBuffers(Schedule& schedule, Random& random) {
  const std::vector<BufferUse*> uses = UsesOf(schedule);
  if (uses.empty()) return;
  const BufferId a = uses[AnyIndex(uses, random)]->buffer, b = uses[AnyIndex(uses, random)]->buffer;
  for (BufferUse* use : uses) {
    if (use->buffer == a || use->buffer == b) use->buffer = use->buffer == a ? b : a;
  }
}

void Mutate(MutationKind kind, Random& random, Plan& plan, Schedule& schedule) {
  Rearranged commands(schedule);
  const size_t size = schedule.commands.size();
  if (size < 3) return;  // an earlier change has left nothing
  // Begin and End are a part of every schedule's form.
  const auto inner = [&] { return 1 + static_cast<size_t>(random.Below(static_cast<int64_t>(size) - 2)); };
  const size_t at = AnyIndex(schedule.commands, random);
  std::vector<BufferUse>& uses = schedule.commands[at].uses;
  std::vector<Wait>& waits = schedule.commands[at].waits;
  switch (kind) {
    case MutationKind::kDropCommand:
      commands.Drop(inner());
      return commands.Finish();
    case MutationKind::kDoubleCommand: {
      const size_t doubled = inner();
      commands.Double(doubled, random.Chance(50) ? doubled + 1 : inner());
      return commands.Finish();
    }
    case MutationKind::kSwapCommands:
      commands.Swap(inner(), inner());
      return commands.Finish();
    case MutationKind::kMoveCommand: {
      // By steps, so that all between keep their order.
      const size_t from = inner(), to = inner();
      for (size_t i = from; i < to; ++i) commands.Swap(i, i + 1);
      for (size_t i = from; i > to; --i) commands.Swap(i, i - 1);
      return commands.Finish();
    }
    case MutationKind::kSwapFields: {
      const auto [a, b] = TwoOfAKind(schedule, random);
      return std::swap(schedule.commands[a].command, schedule.commands[b].command);
    }
    case MutationKind::kSwapUses: {
      const auto [a, b] = TwoOfAKind(schedule, random);
      return std::swap(schedule.commands[a].uses, schedule.commands[b].uses);
    }
    case MutationKind::kCommandField:
      return ChangeField(schedule.commands[at].command, random);
    case MutationKind::kUseField:
      if (!uses.empty()) ChangeField(uses[AnyIndex(uses, random)], random);
      return;
    case MutationKind::kDropUse:
      if (!uses.empty()) uses.erase(uses.begin() + static_cast<std::ptrdiff_t>(AnyIndex(uses, random)));
      return;
    case MutationKind::kDoubleUse:
      if (!uses.empty()) uses.push_back(uses[AnyIndex(uses, random)]);
      return;
    case MutationKind::kOtherBuffer: {
      const std::vector<BufferUse*> all = UsesOf(schedule);
      if (uses.empty()) return;
      const BufferUse other = *all[AnyIndex(all, random)];
      BufferUse& use = uses[AnyIndex(uses, random)];
      use.buffer = other.buffer;
      if (random.Chance(50)) use.offset = other.offset;
      return;
    }
    case MutationKind::kSwapBuffers: {
      if (uses.empty()) return;
      BufferUse &a = uses[AnyIndex(uses, random)], &b = uses[AnyIndex(uses, random)];
      std::swap(a.buffer, b.buffer);
      return std::swap(a.offset, b.offset);
    }
    case MutationKind::kRenameBuffers:
      return RenameBuffers(schedule, random);
    case MutationKind::kDropWait:
      if (!waits.empty()) waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(AnyIndex(waits, random)));
      return;
    case MutationKind::kAddWait:
      if (at == 0) return;
      waits.push_back({CommandId(random.Below(static_cast<int64_t>(at))), WaitReason::kData});
      return std::sort(waits.begin(), waits.end(), [](const Wait& a, const Wait& b) { return a.command < b.command; });
    case MutationKind::kAnyField:
      return ChangeAnyField(plan, random);
  }
}

bool KeepsWaits(MutationKind kind) {
  return kind == MutationKind::kDropWait || kind == MutationKind::kAddWait || kind == MutationKind::kAnyField;
}

}  // namespace

absl::string_view Name(MutationKind kind) {
  constexpr absl::string_view kNames[kNumMutationKinds] = {
      "drop command",   "double command", "swap commands", "move command", "swap fields",  "swap uses",
      "command field",  "use field",      "drop use",      "double use",   "other buffer", "swap buffers",
      "rename buffers", "drop wait",      "add wait",      "any field"};
  return kNames[static_cast<int>(kind)];
}

void Mutate(MutationKind kind, Random& random, Plan& plan) {
  if (plan.schedules.empty()) return;
  Schedule& schedule = plan.schedules[AnyIndex(plan.schedules, random)];
  Mutate(kind, random, plan, schedule);
  if (!KeepsWaits(kind) && random.Chance(kRederivePercent)) DeriveWaits(plan, schedule);
}

}  // namespace reprise::testing
