#include "graph/checked_use.h"

#include <algorithm>
#include <cstring>

#include "graph/compute_binding.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// What is only compared is read in pieces that fit into caches.
constexpr int64_t kChunk = int64_t{1} << 16;

CheckedUse::Kind KindOf(const BufferUse& use) {
  if (use.role == Role::kScratch) return CheckedUse::Kind::kScratch;
  switch (use.access) {
    case Access::kRead:
      return CheckedUse::Kind::kOnlyRead;
    case Access::kAssign:
      return CheckedUse::Kind::kAssigned;
    case Access::kUpdate:
      return use.role == Role::kState ? CheckedUse::Kind::kState : CheckedUse::Kind::kAddedTo;
  }
  return CheckedUse::Kind::kOnlyRead;
}

}  // namespace

Element Repeated(uint8_t byte) {
  Element element;
  element.fill(std::byte{byte});
  return element;
}

std::vector<CheckedUse> CheckedUses(const Bindings& bindings, int local, const ScheduledCommand& command) {
  std::vector<CheckedUse> uses;
  for (const BufferUse& use : command.uses) {
    const bool is_scratch = use.role == Role::kScratch;
    if (use.num_bytes == 0 || !(is_scratch || IsOperand(use.role))) continue;
    CheckedUse& checked = uses.emplace_back(
        CheckedUse{.kind = KindOf(use), .address = bindings.address(local, use), .num_bytes = use.num_bytes});
    checked.name = is_scratch ? "scratch" : OperandName(*bindings.plan, use);
    if (!is_scratch) checked.dtype = ComputeDType(*bindings.plan, use);
    checked.is_own = bindings.plan->buffer(use.buffer).storage != Storage::kExternal || use.role == Role::kState;
  }
  return uses;
}

bool Holds(const CheckedUse& use, const Bytes& bytes, int64_t i, const Element& element) {
  const size_t size = static_cast<size_t>(SizeOf(use.dtype));
  return std::memcmp(bytes.data() + i * size, element.data(), size) == 0;
}

int64_t CountHolding(const CheckedUse& use, const Bytes& bytes, const Element& element) {
  int64_t count = 0;
  for (int64_t i = 0; i < use.elements(); ++i) count += Holds(use, bytes, i, element) ? 1 : 0;
  return count;
}

absl::Status FillUse(MemoryProbe& probe, const CheckedUse& use, const Element& element) {
  const int64_t size = SizeOf(use.dtype);
  if (std::all_of(element.begin(), element.begin() + size, [&](std::byte b) { return b == element[0]; })) {
    return probe.Fill(use.address, std::to_integer<uint8_t>(element[0]), use.num_bytes);
  }
  Bytes bytes(static_cast<size_t>(use.num_bytes));
  for (int64_t at = 0; at < use.num_bytes; at += size) std::memcpy(bytes.data() + at, element.data(), size);
  return probe.Write(use.address, bytes.data(), use.num_bytes);
}

absl::StatusOr<bool> IsFilled(MemoryProbe& probe, const CheckedUse& use, const Element& element) {
  const size_t size = static_cast<size_t>(SizeOf(use.dtype));
  Bytes bytes(static_cast<size_t>(std::min(use.num_bytes, kChunk)));
  for (int64_t first = 0; first < use.num_bytes; first += kChunk) {
    const int64_t count = std::min(kChunk, use.num_bytes - first);
    REPRISE_RETURN_IF_ERROR(probe.Read(bytes.data(), use.address + first, count));
    const bool is_filled = Holds(use, bytes, 0, element) &&
                           std::memcmp(bytes.data(), bytes.data() + size, static_cast<size_t>(count) - size) == 0;
    if (!is_filled) return false;
  }
  return true;
}

}  // namespace reprise::internal
