#include "graph/check_writes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "graph/compute_binding.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

using Bytes = std::vector<std::byte>;

constexpr uint8_t kGuard = 0xa5;
// Of a sum: 5e4 in fp32 and in bf16, more than what most calls add, so that it does not drown in that.
constexpr uint8_t kLargeStart = 0x47;
// A gradient that is added to is looked at in parts, spread evenly, or as a whole if it has no more bytes.
constexpr int64_t kParts = 8, kPartBytes = int64_t{1} << 20;
// Roundings of one element that `add` may take, of sums up to the largest of start and results.
constexpr double kRoundings = 16;

// NaN, then a small number, which adding to it changes; and unlikely integers.
uint8_t FirstPattern(DType dtype) { return IsFloatingPoint(dtype) ? 0xff : 0xa5; }
uint8_t SecondPattern(DType dtype) { return IsFloatingPoint(dtype) ? 0x3a : 0x5a; }

// Half of the distance between 1 and the next number.
double UnitRoundoff(DType dtype) { return dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-24; }

// What a use of the command is to the check.
enum class Kind { kAssigned, kAddedTo, kState, kOnlyRead, kScratch };

struct Checked {
  Kind kind;
  DType dtype = DType::kUInt8;
  std::byte* address = nullptr;
  int64_t num_bytes = 0;
  std::string name = {};  // output of tensor "y"

  int64_t elements() const { return num_bytes / SizeOf(dtype); }
};

Kind KindOf(const BufferUse& use) {
  if (use.role == Role::kScratch) return Kind::kScratch;
  switch (use.access) {
    case Access::kRead:
      return Kind::kOnlyRead;
    case Access::kAssign:
      return Kind::kAssigned;
    case Access::kUpdate:
      return use.role == Role::kState ? Kind::kState : Kind::kAddedTo;
  }
  return Kind::kOnlyRead;
}

std::vector<Checked> CheckedUses(const Bindings& bindings, int local, const ScheduledCommand& command) {
  std::vector<Checked> uses;
  for (const BufferUse& use : command.uses) {
    const bool is_scratch = use.role == Role::kScratch;
    if (use.num_bytes == 0 || !(is_scratch || IsOperand(use.role))) continue;
    uses.push_back({.kind = KindOf(use), .address = bindings.address(local, use), .num_bytes = use.num_bytes});
    if (is_scratch) continue;
    uses.back().dtype = ComputeDType(*bindings.plan, use);
    uses.back().name = OperandName(*bindings.plan, use);
  }
  return uses;
}

double StartValue(DType dtype) {
  Bytes bytes(sizeof(float), std::byte{kLargeStart});
  return FloatAt(bytes.data(), dtype, 0);
}

// The parts of a gradient that is added to, one after another.
absl::Status ReadParts(MemoryProbe& probe, const Checked& use, Bytes& bytes) {
  if (use.num_bytes <= kParts * kPartBytes) {
    bytes.resize(static_cast<size_t>(use.num_bytes));
    return probe.Read(bytes.data(), use.address, use.num_bytes);
  }
  bytes.resize(kParts * kPartBytes);
  for (int64_t part = 0; part < kParts; ++part) {
    const int64_t first = (use.num_bytes - kPartBytes) * part / (kParts - 1) / 4 * 4;
    REPRISE_RETURN_IF_ERROR(probe.Read(bytes.data() + part * kPartBytes, use.address + first, kPartBytes));
  }
  return absl::OkStatus();
}

class WriteCheck {
 public:
  WriteCheck(const Bindings& bindings, int local, const ScheduledCommand& command, MemoryProbe& probe,
             const CheckedWork& work)
      : bindings_(bindings),
        probe_(probe),
        work_(work),
        title_(absl::StrCat(ComputeTitle(*bindings.plan, command.command), " on rank ", bindings.ranks[local])),
        uses_(CheckedUses(bindings, local, command)) {}

  absl::Status Run(std::vector<uint64_t>* digests) {
    REPRISE_ASSIGN_OR_RETURN(const std::vector<uint64_t> read, Digests(kReads));
    REPRISE_RETURN_IF_ERROR(SaveStates());
    std::vector<Bytes> from_large;
    if (Has(Kind::kAddedTo)) {
      REPRISE_RETURN_IF_ERROR(RunOnce({.pattern = FirstPattern, .start = kLargeStart, .as_recorded = false}));
      REPRISE_RETURN_IF_ERROR(ForEach(
          Kind::kAddedTo, [&](const Checked& use) { return ReadParts(probe_, use, from_large.emplace_back()); }));
    }
    REPRISE_RETURN_IF_ERROR(RunOnce({.pattern = FirstPattern, .start = 0, .as_recorded = false}));
    REPRISE_ASSIGN_OR_RETURN(const std::vector<uint64_t> first, Results());
    REPRISE_RETURN_IF_ERROR(RunOnce(kSecondRun));
    REPRISE_ASSIGN_OR_RETURN(std::vector<uint64_t> second, Results());
    REPRISE_ASSIGN_OR_RETURN(const std::vector<uint64_t> read_after, Digests(kReads));
    if (const Checked* const use = FirstDifferent(kReads, read, read_after); use != nullptr) {
      return Fails("changed some of the ", use->elements(), " elements of ", use->name,
                   ", which it may only read; write to outputs, gradients and scratch alone");
    }
    if (const Checked* const use = FirstDifferent(kResults, first, second); use != nullptr) {
      return ExplainDifference(*use);
    }
    REPRISE_RETURN_IF_ERROR(CheckAdditions(from_large));
    if (digests != nullptr) *digests = std::move(second);
    return absl::OkStatus();
  }

  absl::Status RunRecorded(const std::vector<uint64_t>& expected) {
    REPRISE_RETURN_IF_ERROR(RunOnce(kSecondRun));
    REPRISE_ASSIGN_OR_RETURN(const std::vector<uint64_t> digests, Results());
    const Checked* const use = FirstDifferent(kResults, expected, digests);
    if (use == nullptr) return absl::OkStatus();
    REPRISE_ASSIGN_OR_RETURN(const Bytes bytes, ReadAll(*use));
    const int64_t left = use->kind == Kind::kAssigned ? CountHolding(*use, bytes, SecondPattern(use->dtype)) : 0;
    return Fails(left > 0
                     ? absl::StrCat("left ", left, " of ", use->elements(), " elements of ", use->name, " unwritten")
                     : absl::StrCat("wrote other bits to the ", use->elements(), " elements of ", use->name),
                 " in its recording than when it ran before; enqueue the same work at every call");
  }

 private:
  struct RunFrom {
    uint8_t (*pattern)(DType);
    uint8_t start;
    bool as_recorded;
  };
  static constexpr RunFrom kSecondRun = {.pattern = SecondPattern, .start = 0, .as_recorded = true};

  static constexpr std::array kResults = {Kind::kAssigned, Kind::kAddedTo, Kind::kState};
  static constexpr std::array kReads = {Kind::kOnlyRead};

  template <class... Parts>
  absl::Status Fails(const Parts&... parts) const {
    return absl::FailedPreconditionError(absl::StrCat(title_, " ", parts...));
  }

  bool Has(Kind kind) const {
    return std::any_of(uses_.begin(), uses_.end(), [kind](const Checked& use) { return use.kind == kind; });
  }
  absl::Status ForEach(Kind kind, absl::FunctionRef<absl::Status(const Checked&)> body) const {
    for (const Checked& use : uses_) {
      if (use.kind == kind) REPRISE_RETURN_IF_ERROR(body(use));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<uint64_t>> Digests(absl::Span<const Kind> kinds) const {
    std::vector<uint64_t> digests;
    for (const Checked& use : uses_) {
      if (!IsOneOf(use, kinds)) continue;
      REPRISE_ASSIGN_OR_RETURN(digests.emplace_back(), probe_.Digest(use.address, use.num_bytes));
    }
    return digests;
  }
  absl::StatusOr<std::vector<uint64_t>> Results() const { return Digests(kResults); }
  static bool IsOneOf(const Checked& use, absl::Span<const Kind> kinds) {
    return std::find(kinds.begin(), kinds.end(), use.kind) != kinds.end();
  }
  // Of digests of uses of these kinds; null if they are equal.
  const Checked* FirstDifferent(absl::Span<const Kind> kinds, const std::vector<uint64_t>& a,
                                const std::vector<uint64_t>& b) const {
    size_t next = 0;
    for (const Checked& use : uses_) {
      if (!IsOneOf(use, kinds)) continue;
      if (a[next] != b[next]) return &use;
      ++next;
    }
    return nullptr;
  }
  absl::StatusOr<Bytes> ReadAll(const Checked& use) const {
    Bytes bytes(static_cast<size_t>(use.num_bytes));
    REPRISE_RETURN_IF_ERROR(probe_.Read(bytes.data(), use.address, use.num_bytes));
    return bytes;
  }
  static bool Holds(const Checked& use, const Bytes& bytes, int64_t element, uint8_t pattern) {
    const std::byte* const first = bytes.data() + element * SizeOf(use.dtype);
    return std::all_of(first, first + SizeOf(use.dtype), [=](std::byte b) { return b == std::byte{pattern}; });
  }
  static int64_t CountHolding(const Checked& use, const Bytes& bytes, uint8_t pattern) {
    int64_t count = 0;
    for (int64_t i = 0; i < use.elements(); ++i) count += Holds(use, bytes, i, pattern) ? 1 : 0;
    return count;
  }

  absl::Status SaveStates() {
    return ForEach(Kind::kState, [&](const Checked& use) {
      REPRISE_ASSIGN_OR_RETURN(states_.emplace_back(), ReadAll(use));
      return absl::OkStatus();
    });
  }

  absl::Status Prepare(const RunFrom& run) {
    REPRISE_RETURN_IF_ERROR(ForEach(Kind::kAssigned, [&](const Checked& use) {
      return probe_.Fill(use.address, run.pattern(use.dtype), use.num_bytes);
    }));
    REPRISE_RETURN_IF_ERROR(ForEach(
        Kind::kAddedTo, [&](const Checked& use) { return probe_.Fill(use.address, run.start, use.num_bytes); }));
    size_t next = 0;
    REPRISE_RETURN_IF_ERROR(ForEach(Kind::kState, [&](const Checked& use) {
      return states_.empty() ? absl::OkStatus() : probe_.Write(use.address, states_[next++].data(), use.num_bytes);
    }));
    return ForEach(Kind::kScratch, [&](const Checked& use) {
      REPRISE_RETURN_IF_ERROR(probe_.Fill(use.address, run.pattern(use.dtype), use.num_bytes));
      if (bindings_.scratch_guard == 0) return absl::OkStatus();
      return probe_.Fill(use.address + use.num_bytes, kGuard, bindings_.scratch_guard);
    });
  }

  absl::Status RunOnce(const RunFrom& run) {
    REPRISE_RETURN_IF_ERROR(Prepare(run));
    REPRISE_RETURN_IF_ERROR(work_.enqueue(run.as_recorded));
    if (!work_.runs_at_once) REPRISE_RETURN_IF_ERROR(CheckUntouched(run));
    REPRISE_RETURN_IF_ERROR(work_.execute());
    return CheckGuard();
  }

  // What the function wrote while it was called.
  absl::Status CheckUntouched(const RunFrom& run) const {
    for (const Checked& use : uses_) {
      if (use.kind != Kind::kAssigned && use.kind != Kind::kAddedTo) continue;
      const uint8_t pattern = use.kind == Kind::kAssigned ? run.pattern(use.dtype) : run.start;
      REPRISE_ASSIGN_OR_RETURN(const Bytes bytes, ReadAll(use));
      if (bytes[0] == std::byte{pattern} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0)
        continue;
      const int64_t written = use.elements() - CountHolding(use, bytes, pattern);
      return Fails(
          "wrote ", written, " of ", use.elements(), " elements of ", use.name,
          " while it was called, which no replay would do again; enqueue the work on the stream of the context");
    }
    return absl::OkStatus();
  }

  absl::Status CheckGuard() const {
    if (bindings_.scratch_guard == 0) return absl::OkStatus();
    return ForEach(Kind::kScratch, [&](const Checked& use) {
      Bytes bytes(static_cast<size_t>(bindings_.scratch_guard));
      REPRISE_RETURN_IF_ERROR(probe_.Read(bytes.data(), use.address + use.num_bytes, bindings_.scratch_guard));
      const auto written = std::find_if(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{kGuard}; });
      if (written == bytes.end()) return absl::OkStatus();
      return Fails("wrote byte ", use.num_bytes + (written - bytes.begin()),
                   " of scratch, but the call declares scratch_bytes ", use.num_bytes,
                   "; raise CallSpec::scratch_bytes");
    });
  }

  // The second run's results are still there. A third one, the second but for what memory held, tells what depends on
  // that from what the function does otherwise when it is called again.
  absl::Status ExplainDifference(const Checked& use) {
    REPRISE_ASSIGN_OR_RETURN(const Bytes second, ReadAll(use));
    REPRISE_RETURN_IF_ERROR(RunOnce({.pattern = FirstPattern, .start = 0, .as_recorded = true}));
    REPRISE_ASSIGN_OR_RETURN(const Bytes third, ReadAll(use));
    const uint8_t pattern = FirstPattern(use.dtype);
    const int64_t size = SizeOf(use.dtype);
    int64_t left = 0, differ = 0, nan = 0, at = -1;
    for (int64_t i = 0; i < use.elements(); ++i) {
      if (std::memcmp(second.data() + i * size, third.data() + i * size, static_cast<size_t>(size)) == 0) continue;
      at = differ++ == 0 ? i : at;
      left += Holds(use, second, i, SecondPattern(use.dtype)) && Holds(use, third, i, pattern) ? 1 : 0;
      nan += IsFloatingPoint(use.dtype) && std::isnan(FloatAt(third.data(), use.dtype, i)) ? 1 : 0;
    }
    const std::string of = absl::StrCat(" of ", use.elements(), " elements of ", use.name);
    if (use.kind == Kind::kAssigned && left > 0) {
      return Fails("left ", left, of,
                   " unwritten; write every element of what the call declares, and add to a gradient ",
                   "only where Gradient::mode is kAdd");
    }
    if (differ == 0) {
      return Fails(
          "wrote other bits to the ", use.elements(), " elements of ", use.name,
          bindings_.check_captured && work_.runs_at_once ? " when it was captured" : " when it was called again",
          "; enqueue the same work at every call, and sum in an order that is always the same");
    }
    // NaN was there before.
    if (use.kind == Kind::kAssigned && nan == differ) {
      return Fails("read ", differ, of,
                   " that it has to assign, as by adding to them; write every element without reading it, and add to a "
                   "gradient only where Gradient::mode is kAdd");
    }
    return Fails(
        "gave other bits to ", differ, of, ", the first at element ", at,
        ", when memory held other bytes before; read no output and no scratch before it is written, and sum in "
        "an order that is always the same");
  }

  // The second run's sums, which began with zeros, are still there.
  absl::Status CheckAdditions(const std::vector<Bytes>& from_large) {
    size_t next = 0;
    return ForEach(Kind::kAddedTo, [&](const Checked& use) {
      const Bytes& large = from_large[next++];
      Bytes zero;
      REPRISE_RETURN_IF_ERROR(ReadParts(probe_, use, zero));
      const int64_t count = static_cast<int64_t>(zero.size()) / SizeOf(use.dtype);
      const double start = StartValue(use.dtype);
      int64_t wrong = 0, equal = 0, at = -1;
      for (int64_t i = 0; i < count; ++i) {
        const double a = FloatAt(zero.data(), use.dtype, i), b = FloatAt(large.data(), use.dtype, i);
        const double bound = kRoundings * UnitRoundoff(use.dtype) * (std::abs(a) + std::abs(b) + start);
        // Also where either is not finite.
        if (!(std::abs(b - a - start) > bound) || !std::isfinite(a)) continue;
        at = wrong++ == 0 ? i : at;
        equal += a == b ? 1 : 0;
      }
      if (wrong == 0) return absl::OkStatus();
      const std::string of = absl::StrCat(" of ", count, " elements", count < use.elements() ? " looked at" : "",
                                          " of ", use.name, ", whose mode is kAdd");
      constexpr absl::string_view kRemedy = "; add to what is there where Gradient::mode is kAdd";
      if (equal == wrong) return Fails("assigned ", wrong, of, kRemedy);
      return Fails("did not add to ", wrong, of, ": element ", at, " went from 0 to ",
                   FloatAt(zero.data(), use.dtype, at), ", but from ", start, " to ",
                   FloatAt(large.data(), use.dtype, at), kRemedy);
    });
  }

  const Bindings& bindings_;
  MemoryProbe& probe_;
  const CheckedWork& work_;
  const std::string title_;
  const std::vector<Checked> uses_;
  std::vector<Bytes> states_;
};

}  // namespace

absl::Status CheckWrites(const Bindings& bindings, int local, const ScheduledCommand& command, MemoryProbe& probe,
                         const CheckedWork& work, std::vector<uint64_t>* digests) {
  return WriteCheck(bindings, local, command, probe, work).Run(digests);
}

absl::Status CheckRecordedWrites(const Bindings& bindings, int local, const ScheduledCommand& command,
                                 MemoryProbe& probe, absl::FunctionRef<absl::Status()> execute,
                                 const std::vector<uint64_t>& digests) {
  const auto nothing = [](bool) { return absl::OkStatus(); };
  const CheckedWork work = {.enqueue = nothing, .execute = execute, .runs_at_once = true};
  return WriteCheck(bindings, local, command, probe, work).RunRecorded(digests);
}

void WriteDigests::Add(int schedule, CommandId command, int local, std::vector<uint64_t> digests) {
  const std::lock_guard<std::mutex> lock(mutex_);
  digests_[{schedule, command, local}].push_back(std::move(digests));
}

std::vector<uint64_t> WriteDigests::Take(int schedule, CommandId command, int local) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = digests_.find({schedule, command, local});
  if (found == digests_.end() || found->second.empty()) return {};
  std::vector<uint64_t> digests = std::move(found->second.front());
  found->second.pop_front();
  return digests;
}

}  // namespace reprise::internal
