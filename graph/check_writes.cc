#include "graph/check_writes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/check_sums.h"
#include "graph/checked_use.h"
#include "graph/compute_binding.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

using Kind = CheckedUse::Kind;

constexpr uint8_t kGuard = 0xa5;

// What memory holds before a run: NaN, then a small number, which adding to it changes; and unlikely integers.
Element FirstPattern(DType dtype) { return Repeated(IsFloatingPoint(dtype) ? 0xff : 0xa5); }
Element SecondPattern(DType dtype) { return Repeated(IsFloatingPoint(dtype) ? 0x3a : 0x5a); }
// What memory that a function may read holds while it is called: 0.046, then -0.37, and integers 0, then 1, which do
// little harm as sizes and indices.
Element FirstAtCall(DType dtype) { return Repeated(IsFloatingPoint(dtype) ? 0x3d : 0); }
Element SecondAtCall(DType dtype) { return IsFloatingPoint(dtype) ? Repeated(0xbe) : Element{std::byte{1}}; }

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
    REPRISE_ASSIGN_OR_RETURN(const std::vector<uint64_t> read, Digests(IsRead));
    REPRISE_RETURN_IF_ERROR(Hold());
    REPRISE_RETURN_IF_ERROR(RunOnce(kFirstRun));
    REPRISE_ASSIGN_OR_RETURN(const std::vector<uint64_t> first, Results());
    REPRISE_ASSIGN_OR_RETURN(const std::string no_sum, FindNoSum());
    REPRISE_RETURN_IF_ERROR(RunOnce(kSecondRun));
    REPRISE_ASSIGN_OR_RETURN(std::vector<uint64_t> second, Results());
    REPRISE_ASSIGN_OR_RETURN(const std::vector<uint64_t> read_after, Digests(IsRead));
    if (const CheckedUse* const use = FirstDifferent(IsRead, read, read_after); use != nullptr) {
      return Fails("changed some of the ", use->elements(), " elements of ", use->name,
                   ", which it may only read; write to outputs, gradients and scratch alone");
    }
    if (const CheckedUse* const use = FirstDifferent(IsResult, first, second); use != nullptr) {
      return ExplainDifference(*use);
    }
    if (!no_sum.empty()) return Fails(no_sum);
    if (digests != nullptr) *digests = std::move(second);
    return absl::OkStatus();
  }

  absl::Status RunRecorded(const std::vector<uint64_t>& expected) {
    REPRISE_RETURN_IF_ERROR(RunOnce(kSecondRun));
    REPRISE_ASSIGN_OR_RETURN(const std::vector<uint64_t> digests, Results());
    const CheckedUse* const use = FirstDifferent(IsResult, expected, digests);
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
    Element (*pattern)(DType);
    Element (*at_call)(DType);
    bool as_recorded;
    bool from_start;  // sums; from zeros otherwise
  };
  static constexpr RunFrom kFirstRun = {FirstPattern, FirstAtCall, /*as_recorded=*/false, /*from_start=*/false};
  static constexpr RunFrom kRunFromStart = {FirstPattern, FirstAtCall, /*as_recorded=*/false, /*from_start=*/true};
  static constexpr RunFrom kSecondRun = {SecondPattern, SecondAtCall, /*as_recorded=*/true, /*from_start=*/false};
  // The second but for what memory held before, and when the function was called.
  static constexpr RunFrom kThirdRun = {FirstPattern, SecondAtCall, /*as_recorded=*/true, /*from_start=*/false};
  static constexpr RunFrom kFourthRun = {SecondPattern, FirstAtCall, /*as_recorded=*/true, /*from_start=*/false};

  // What is compared.
  static bool IsResult(const CheckedUse& use) { return use.kind != Kind::kOnlyRead && use.kind != Kind::kScratch; }
  static bool IsRead(const CheckedUse& use) { return use.kind == Kind::kOnlyRead; }

  template <class... Parts>
  absl::Status Fails(const Parts&... parts) const {
    return absl::FailedPreconditionError(absl::StrCat(title_, " ", parts...));
  }

  absl::StatusOr<std::vector<uint64_t>> Digests(bool (*of)(const CheckedUse&)) const {
    std::vector<uint64_t> digests;
    for (const CheckedUse& use : uses_) {
      if (!of(use)) continue;
      REPRISE_ASSIGN_OR_RETURN(digests.emplace_back(), probe_.Digest(use.address, use.num_bytes));
    }
    return digests;
  }
  absl::StatusOr<std::vector<uint64_t>> Results() const { return Digests(IsResult); }
  // Of what such digests are of; null if they are equal.
  const CheckedUse* FirstDifferent(bool (*of)(const CheckedUse&), const std::vector<uint64_t>& a,
                                   const std::vector<uint64_t>& b) const {
    size_t next = 0;
    for (const CheckedUse& use : uses_) {
      if (of(use) && a[next] != b[next]) return &use;
      next += of(use) ? 1 : 0;
    }
    return nullptr;
  }
  absl::StatusOr<Bytes> ReadAll(const CheckedUse& use) const {
    Bytes bytes(static_cast<size_t>(use.num_bytes));
    REPRISE_RETURN_IF_ERROR(probe_.Read(bytes.data(), use.address, use.num_bytes));
    return bytes;
  }
  // What is put back before work runs: what the function may change, and what is changed while it is called.
  bool IsHeld(const CheckedUse& use) const { return use.kind == Kind::kState || IsReadAtCall(use); }
  // Does it hold other bytes while the function is called?
  bool IsReadAtCall(const CheckedUse& use) const {
    return !work_.runs_at_once && use.is_own && (use.kind == Kind::kState || use.kind == Kind::kOnlyRead);
  }
  absl::Status Hold() {
    for (CheckedUse& use : uses_) {
      if (!IsHeld(use)) continue;
      REPRISE_ASSIGN_OR_RETURN(use.held, ReadAll(use));
    }
    return absl::OkStatus();
  }
  absl::Status PutBack() const {
    for (const CheckedUse& use : uses_) {
      if (!use.held.empty()) REPRISE_RETURN_IF_ERROR(probe_.Write(use.address, use.held.data(), use.num_bytes));
    }
    return absl::OkStatus();
  }

  absl::Status Prepare(const RunFrom& run) const {
    for (const CheckedUse& use : uses_) {
      if (use.kind == Kind::kState || use.kind == Kind::kOnlyRead) continue;
      REPRISE_RETURN_IF_ERROR(FillUse(probe_, use, Before(use, run)));
      if (use.kind == Kind::kScratch && bindings_.scratch_guard > 0) {
        REPRISE_RETURN_IF_ERROR(probe_.Fill(use.address + use.num_bytes, kGuard, bindings_.scratch_guard));
      }
    }
    return PutBack();
  }
  // What the elements that it writes hold before the run.
  static Element Before(const CheckedUse& use, const RunFrom& run) {
    if (use.kind == Kind::kAddedTo) return Repeated(run.from_start ? use.start : 0);
    return run.pattern(use.dtype);
  }

  absl::Status RunOnce(const RunFrom& run) const {
    REPRISE_RETURN_IF_ERROR(Prepare(run));
    REPRISE_RETURN_IF_ERROR(work_.runs_at_once ? work_.enqueue(run.as_recorded) : CallApart(run));
    REPRISE_RETURN_IF_ERROR(work_.execute());
    return CheckGuard();
  }

  // Calls the function while what its work will read holds other bytes.
  absl::Status CallApart(const RunFrom& run) const {
    for (const CheckedUse& use : uses_) {
      if (!IsReadAtCall(use)) continue;
      REPRISE_RETURN_IF_ERROR(FillUse(probe_, use, run.at_call(use.dtype)));
    }
    absl::Status called = work_.enqueue(run.as_recorded);
    if (called.ok()) called = CheckUntouched(run);
    const absl::Status put_back = PutBack();
    return called.ok() ? put_back : called;
  }

  // What the function wrote while it was called.
  absl::Status CheckUntouched(const RunFrom& run) const {
    for (const CheckedUse& use : uses_) {
      const bool is_read = IsReadAtCall(use);
      if (use.kind == Kind::kOnlyRead && !is_read) continue;
      const Element element = is_read ? run.at_call(use.dtype) : Before(use, run);
      REPRISE_ASSIGN_OR_RETURN(const bool is_filled, IsFilled(probe_, use, element));
      if (is_filled) continue;
      REPRISE_ASSIGN_OR_RETURN(const Bytes bytes, ReadAll(use));
      const int64_t written = use.elements() - CountHolding(use, bytes, element);
      return Fails(
          "wrote ", written, " of ", use.elements(), " elements of ", use.name,
          " while it was called, which no replay would do again; enqueue the work on the stream of the context");
    }
    return absl::OkStatus();
  }

  absl::Status CheckGuard() const {
    for (const CheckedUse& use : uses_) {
      if (use.kind != Kind::kScratch || bindings_.scratch_guard == 0) continue;
      Bytes bytes(static_cast<size_t>(bindings_.scratch_guard));
      REPRISE_RETURN_IF_ERROR(probe_.Read(bytes.data(), use.address + use.num_bytes, bindings_.scratch_guard));
      const auto written = std::find_if(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{kGuard}; });
      if (written == bytes.end()) continue;
      return Fails("wrote byte ", use.num_bytes + (written - bytes.begin()),
                   " of scratch, but the call declares scratch_bytes ", use.num_bytes,
                   "; raise CallSpec::scratch_bytes");
    }
    return absl::OkStatus();
  }

  // The second run's results are still there. A third run and a fourth one tell what depends on what memory held,
  // before or while the function was called, from what the function does otherwise when it is called again.
  absl::Status ExplainDifference(const CheckedUse& use) {
    REPRISE_ASSIGN_OR_RETURN(const Bytes second, ReadAll(use));
    REPRISE_RETURN_IF_ERROR(RunOnce(kThirdRun));
    REPRISE_ASSIGN_OR_RETURN(const Bytes third, ReadAll(use));
    const Element pattern = FirstPattern(use.dtype);
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
    if (differ == 0 && !work_.runs_at_once) {
      REPRISE_RETURN_IF_ERROR(RunOnce(kFourthRun));
      REPRISE_ASSIGN_OR_RETURN(const Bytes fourth, ReadAll(use));
      if (fourth != second) {
        return Fails("gave to the ", use.elements(), " elements of ", use.name,
                     " bits that depend on what memory held when the function was called; read and write only in what "
                     "is enqueued");
      }
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

  // The first run's sums, which began with zeros, are still there. Says what is no sum, if anything is. Where a start
  // is lost in large terms that cancel, a larger one may tell.
  absl::StatusOr<std::string> FindNoSum() {
    std::vector<CheckedUse*> added;
    std::vector<Bytes> sums;
    for (CheckedUse& use : uses_) {
      if (use.kind != Kind::kAddedTo) continue;
      added.push_back(&use);
      REPRISE_RETURN_IF_ERROR(ReadParts(probe_, use, sums.emplace_back()));
      use.start = StartFor(use.dtype, sums.back());
    }
    std::vector<std::string> faults(added.size());  // at the first start
    for (bool goes_on = !added.empty(); goes_on;) {
      goes_on = false;
      REPRISE_RETURN_IF_ERROR(RunOnce(kRunFromStart));
      for (size_t a = 0; a < added.size(); ++a) {
        CheckedUse& use = *added[a];
        Bytes from_start;
        REPRISE_RETURN_IF_ERROR(ReadParts(probe_, use, from_start));
        const NoSum found = CompareSums(use, sums[a], from_start);
        if (found.text.empty() || faults[a].empty()) faults[a] = found.text;
        if (found.text.empty() || found.keeps_start || use.start + kStartStep > kLargestStart) continue;
        use.start += kStartStep;
        goes_on = true;
      }
    }
    const auto fault =
        std::find_if(faults.begin(), faults.end(), [](const std::string& text) { return !text.empty(); });
    return fault == faults.end() ? std::string() : *fault;
  }

  const Bindings& bindings_;
  MemoryProbe& probe_;
  const CheckedWork& work_;
  const std::string title_;
  std::vector<CheckedUse> uses_;
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
