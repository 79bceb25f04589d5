// Check::kMeaning: a symbolic replay. Each schedule is run once, in issue order, on values instead of bytes, from the
// memory that the model says it may start with to the memory that it must leave. Check::kData and kMemory prove that
// every other order that lanes and waits allow gives the same. One rank stands for all: what is whole or a shard is so
// on each of them.
#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/verifier/byte_map.h"
#include "core/verifier/checks.h"
#include "core/verifier/memory_meaning.h"
#include "core/verifier/model_meaning.h"
#include "core/verifier/transfer.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// Bytes: kAlignment elements of the narrowest floating-point dtype. Kernels take what starts there several elements at
// a time.
constexpr int64_t kOffsetAlignment = kAlignment * SizeOf(DType::kBFloat16);

// What a byte holds.
struct Content {
  Value value;
  int64_t origin = 0;     // offset in the buffer at which the value's first byte is, or would be
  CommandId writer = {};  // invalid: the schedule starts with it
};

class Replay {
 public:
  Replay(const ModelMeaning& model, const Schedule& schedule)
      : model_(model), plan_(model.plan()), schedule_(schedule), transfer_(model), memory_(plan_.buffers.size()) {}

  absl::Status Run(const Moment& start, const Moment& end) {
    VisitMemory(model_, start, [&](const Place& place) { Set(place, place.offset, CommandId()); });
    for (size_t i = 0; i < schedule_.commands.size(); ++i) {
      REPRISE_RETURN_IF_ERROR(Step(CommandId(static_cast<int64_t>(i))));
    }
    absl::Status status;
    VisitMemory(model_, end, [&](const Place& place) {
      if (!status.ok()) return;
      const std::string found = FindOther(place, place.offset);
      if (!found.empty()) status = absl::InternalError(absl::StrCat("the schedule must leave ", found));
    });
    return status;
  }

 private:
  const ScheduledCommand& At(CommandId id) const { return schedule_.commands[id.value()]; }
  template <class... Parts>
  absl::Status Error(CommandId id, const Parts&... parts) const {
    return absl::InternalError(absl::StrCat(CommandText(plan_, schedule_, id), " ", parts...));
  }
  std::string NameOf(Role role, int32_t id) const {
    return id < 0 ? std::string(Name(role)) : absl::StrCat(Name(role), " ", id);
  }

  ByteMap<Content>& Of(BufferId buffer) {
    std::optional<ByteMap<Content>>& memory = memory_[buffer.value()];
    if (!memory.has_value()) memory.emplace(plan_.buffer(buffer).num_bytes, Content());
    return *memory;
  }

  // `origin` is the offset of the value's first byte.
  void Set(const Place& place, int64_t origin, CommandId writer) {
    Of(place.buffer).Assign(place.offset, place.offset + place.num_bytes, {place.value, origin, writer});
  }

  // Empty if all of the place holds its value; else "bytes ... with ..., but they hold ..., as ... left them".
  std::string FindOther(const Place& place, int64_t origin) {
    const int64_t end = place.offset + place.num_bytes;
    if (end > plan_.buffer(place.buffer).num_bytes) {
      return absl::StrCat(BytesText(plan_, place.buffer, {place.offset, end}), ", which has fewer");
    }
    std::string text;
    Of(place.buffer).Find(place.offset, end, [&](int64_t first, int64_t last, const Content& content) {
      if (content.value == place.value && content.origin == origin) return true;
      const bool moved = content.value == place.value;
      const auto text_of = [&](const Value& value, int64_t of) {
        return absl::StrCat(TextOf(plan_, value), moved ? absl::StrCat(" from byte ", first - of) : "");
      };
      text = absl::StrCat(
          BytesText(plan_, place.buffer, {first, last}), " with ", text_of(place.value, origin), ", but ",
          content.value.kind == ValueKind::kUndefined
              ? "they hold nothing"
              : absl::StrCat("they hold ", text_of(content.value, content.origin)),
          content.writer.valid() ? absl::StrCat(", as ", CommandText(plan_, schedule_, content.writer), " left them")
                                 : "");
      return false;
    });
    return text;
  }

  // All uses are compared with what came before the command, then it takes effect.
  absl::Status Step(CommandId id) {
    const ScheduledCommand& command = At(id);
    if (const absl::Status status = transfer_.Find(schedule_, command.command); !status.ok()) {
      return Error(id, status.message());
    }
    REPRISE_RETURN_IF_ERROR(Pair(id));
    const absl::Span<const Operand> operands = transfer_.operands();
    for (size_t i = 0; i < operands.size(); ++i) {
      const BufferUse& use = *uses_[i];
      for (const Piece& piece : transfer_.before(operands[i])) {
        if (piece.num_bytes == 0) continue;
        const int64_t offset = use.offset + piece.offset;
        const std::string other = FindOther({use.buffer, offset, piece.num_bytes, piece.value}, offset - piece.from);
        if (!other.empty()) return Error(id, "must find ", NameOf(use.role, use.id), " in ", other);
      }
    }
    for (size_t i = 0; i < operands.size(); ++i) {
      const BufferUse& use = *uses_[i];
      if (use.access == Access::kRead || use.num_bytes == 0 || !use.is_own()) continue;
      const absl::Span<const Piece> after = transfer_.after(operands[i]);
      const bool whole = after.size() == 1 && after[0].num_bytes == use.num_bytes;
      if (!whole) Set({use.buffer, use.offset, use.num_bytes, Value()}, use.offset, id);
      for (const Piece& piece : after) {
        if (piece.num_bytes == 0) continue;
        const int64_t offset = use.offset + piece.offset;
        Set({use.buffer, offset, piece.num_bytes, piece.value}, offset - piece.from, id);
      }
    }
    return absl::OkStatus();
  }

  // Finds the use of each operand. There is no other use. Several uses of one role and id are in order.
  absl::Status Pair(CommandId id) {
    const std::vector<BufferUse>& uses = At(id).uses;
    const absl::Span<const Operand> operands = transfer_.operands();
    const auto key = [](const auto& use) { return std::make_tuple(use.role, use.id, use.peers); };
    uses_.resize(uses.size());
    for (size_t i = 0; i < uses.size(); ++i) uses_[i] = &uses[i];
    size_t matched = 0;
    while (matched < uses.size() && matched < operands.size() && key(uses[matched]) == key(operands[matched]))
      ++matched;
    if (matched < std::max(uses.size(), operands.size())) REPRISE_RETURN_IF_ERROR(PairSorted(id, key));
    for (size_t i = 0; i < operands.size(); ++i) REPRISE_RETURN_IF_ERROR(CheckUse(id, operands[i], *uses_[i], i));
    return absl::OkStatus();
  }

  template <class Key>
  absl::Status PairSorted(CommandId id, const Key& key) {
    const absl::Span<const Operand> operands = transfer_.operands();
    std::vector<size_t> order(operands.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return key(operands[a]) < key(operands[b]); });
    std::vector<const BufferUse*> sorted = uses_;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](const BufferUse* a, const BufferUse* b) { return key(*a) < key(*b); });
    for (size_t i = 0; i < std::max(order.size(), sorted.size()); ++i) {
      const bool misses = i == sorted.size() || (i < order.size() && key(operands[order[i]]) < key(*sorted[i]));
      if (misses) return Error(id, "has no use as ", UseText(operands[order[i]]), ", which it needs");
      if (i == order.size() || key(*sorted[i]) < key(operands[order[i]])) {
        return Error(id, "uses ", BytesText(plan_, sorted[i]->buffer, BytesOf(*sorted[i])), " as ", UseText(*sorted[i]),
                     ", which it does not need");
      }
    }
    uses_.resize(order.size());
    for (size_t i = 0; i < order.size(); ++i) uses_[order[i]] = sorted[i];
    return absl::OkStatus();
  }

  // "received 0 of peers".
  template <class T>
  std::string UseText(const T& use) const {
    return absl::StrCat(NameOf(use.role, use.id), use.peers.valid() ? " of peers" : "");
  }

  absl::Status CheckUse(CommandId id, const Operand& operand, const BufferUse& use, size_t index) const {
    const auto wrong = [&](const auto&... words) {
      return Error(id, Name(use.access), "s ", BytesText(plan_, use.buffer, BytesOf(use)), " as ", UseText(use), ", ",
                   words...);
    };
    if (use.access != operand.access || use.num_bytes != operand.num_bytes) {
      return wrong("but must ", Name(operand.access), " ", operand.num_bytes, " bytes");
    }
    if (use.num_bytes == 0) return absl::OkStatus();
    const Storage storage = plan_.buffer(use.buffer).storage;
    const bool is_sent = use.role == Role::kGathered || use.role == Role::kReduceBuffer || use.role == Role::kReceived;
    if (use.buffer == operand.home) {
      if (use.offset != operand.home_offset) return wrong("whose place there is byte ", operand.home_offset);
    } else if (is_sent ? storage != Storage::kCommunicating : use.access != Access::kRead && !IsTransient(storage)) {
      if (operand.home.valid()) return wrong("whose place is ", plan_.buffer(operand.home).name);
      return wrong("which cannot be in storage ", Name(storage));
    } else if (IsTransient(storage) && use.offset % kOffsetAlignment != 0) {
      return wrong("which does not start at a multiple of ", kOffsetAlignment, " bytes");
    }
    if (use.is_own() || index == 0) return absl::OkStatus();
    const BufferUse& own = *uses_[index - 1];
    if (use.buffer == own.buffer && use.offset == own.offset) return absl::OkStatus();
    return wrong("but has ", BytesText(plan_, own.buffer, BytesOf(own)), " as its own");
  }

  const ModelMeaning& model_;
  const Plan& plan_;
  const Schedule& schedule_;
  Transfer transfer_;
  std::vector<std::optional<ByteMap<Content>>> memory_;  // by BufferId; none: nothing
  std::vector<const BufferUse*> uses_;                   // of the present command, by operand
};

// What each schedule may start with and must leave, by what it is in a step. First and body may be one schedule.
struct Part {
  int schedule = -1, microbatches = 0;
  Moment start, end;
};

std::vector<Part> PartsOf(const ModelMeaning& model) {
  const Plan& plan = model.plan();
  const int microbatches = model.microbatches();
  const bool once = model.once() && model.trains();
  const int64_t last = microbatches - 1;
  // Positions of a step that reduces once count as those of one microbatch.
  const int64_t reduced = once ? 0 : last;
  const auto part = [&](int schedule, int of_microbatches, Moment start, Moment end) {
    start.held = &plan.schedules[schedule].start;
    end.held = &plan.schedules[schedule].end;
    return Part{schedule, of_microbatches, start, end};
  };
  const Moment before = {.time = -1, .losses = -1, .accumulators = !once};
  Moment going_on = before;
  going_on.unsharded_gradients = once;
  const Moment left = {.time = last, .losses = last, .control = 1, .unsharded_gradients = once, .accumulators = !once};
  std::vector<Part> parts = {part(plan.first, microbatches, before, left)};
  if (plan.body != plan.first || once) parts.push_back(part(plan.body, microbatches, going_on, left));
  if (plan.finish >= 0) {
    Moment start = left;
    start.time = start.losses = reduced;
    Moment end = start;
    end.unsharded_gradients = false;
    end.accumulators = true;
    parts.push_back(part(plan.finish, 0, start, end));
  }
  if (plan.step >= 0) {
    const Moment start = {.control = 1, .accumulators = true};
    Moment end = {.losses = -1, .control = 1, .version = 1};
    parts.push_back(part(plan.step, 0, start, end));
  }
  return parts;
}

absl::Status CheckParts(const Plan& plan, const std::vector<Part>& parts) {
  std::vector<bool> named(plan.schedules.size(), false);
  for (const Part& part : parts) {
    named[part.schedule] = true;
    const Schedule& schedule = plan.schedules[part.schedule];
    if (schedule.microbatches == part.microbatches) continue;
    return absl::InternalError(
        absl::StrCat(schedule.name, " has ", schedule.microbatches, " microbatches, not ", part.microbatches));
  }
  for (size_t s = 0; s < named.size(); ++s) {
    if (named[s]) continue;
    return absl::InternalError(
        absl::StrCat("schedule ", s, ", ", plan.schedules[s].name, ", is none of first, body, finish and step"));
  }
  if (plan.finish >= 0 || plan.step < 0 || plan.options.reduce != Reduce::kOncePerStep) return absl::OkStatus();
  return absl::InternalError("the plan reduces once per step, but has no finish");
}

}  // namespace

absl::Status CheckMeaning(const Plan& plan, std::string& schedule) {
  REPRISE_RETURN_IF_ERROR(CheckPlaces(plan));
  const ModelMeaning model(plan);
  const std::vector<Part> parts = PartsOf(model);
  REPRISE_RETURN_IF_ERROR(CheckParts(plan, parts));
  for (const Part& part : parts) {
    schedule = plan.schedules[part.schedule].name;
    REPRISE_RETURN_IF_ERROR(Replay(model, plan.schedules[part.schedule]).Run(part.start, part.end));
  }
  return absl::OkStatus();
}

}  // namespace reprise::internal
