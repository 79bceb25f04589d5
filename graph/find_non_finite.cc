#include "graph/find_non_finite.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/model/quoted.h"
#include "graph/compute_binding.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

constexpr int64_t kChunk = int64_t{1} << 20;  // elements that are read at a time

struct Element {
  int64_t index = 0;
  double value = 0;
};

// The first one that is not finite.
absl::StatusOr<std::optional<Element>> NonFiniteElement(MemoryProbe& probe, const std::byte* address, int64_t elements,
                                                        DType dtype) {
  std::vector<std::byte> bytes(static_cast<size_t>(std::min(elements, kChunk) * SizeOf(dtype)));
  for (int64_t first = 0; first < elements; first += kChunk) {
    const int64_t count = std::min(kChunk, elements - first);
    REPRISE_RETURN_IF_ERROR(probe.Read(bytes.data(), address + first * SizeOf(dtype), count * SizeOf(dtype)));
    for (int64_t i = 0; i < count; ++i) {
      const double value = FloatAt(bytes.data(), dtype, i);
      if (!std::isfinite(value)) return Element{first + i, value};
    }
  }
  return std::nullopt;
}

class Search {
 public:
  Search(const Bindings& bindings, int local, CommandId id, const ScheduledCommand& command, MemoryProbe& probe)
      : bindings_(bindings), plan_(*bindings.plan), local_(local), id_(id), command_(command), probe_(probe) {}

  // Looks at the operands that the command only reads, or at those that it writes.
  absl::Status LookAt(bool read) const {
    if (IsFound()) return absl::OkStatus();
    for (const BufferUse& use : command_.uses) {
      if (!IsOperand(use.role) || (use.access == Access::kRead) != read) continue;
      const DType dtype = ComputeDType(plan_, use);
      if (!IsFloatingPoint(dtype)) continue;
      const int64_t elements = use.num_bytes / SizeOf(dtype);
      REPRISE_ASSIGN_OR_RETURN(const std::optional<Element> found,
                               NonFiniteElement(probe_, bindings_.address(local_, use), elements, dtype));
      if (!found.has_value()) continue;
      const std::string title = ComputeTitle(plan_, command_.command);
      const std::string what =
          absl::StrCat("element ", found->index, " of ", elements, " of ", OperandName(plan_, use));
      Report(read ? absl::StrCat(what, ", which ", title, " reads, is ", found->value, " before any call has run on it")
                  : absl::StrCat(title, " made ", what, " ", found->value, " from finite values"));
      return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  absl::Status LookAtSums(const Accumulate& accumulate) const {
    if (IsFound()) return absl::OkStatus();
    const UnitLayout& unit = plan_.layout.units[accumulate.unit.value()];
    for (const BufferUse& use : command_.uses) {
      if (use.role != Role::kAccumulator) continue;
      for (const ShardSegment& segment : Segments(unit.groups[use.id], bindings_.ranks[local_])) {
        const std::byte* const first = bindings_.address(local_, use) + segment.shard_element * int64_t{sizeof(float)};
        REPRISE_ASSIGN_OR_RETURN(const std::optional<Element> found,
                                 NonFiniteElement(probe_, first, segment.num_elements, DType::kFloat32));
        if (!found.has_value()) continue;
        const Parameter& parameter = plan_.model.parameter(segment.parameter);
        Report(absl::StrCat("the reduction over ranks made element ", segment.parameter_element + found->index, " of ",
                            NumElements(parameter.spec.shape), " of gradient of parameter ",
                            Quoted(parameter.spec.name), " of unit ", Quoted(plan_.model.unit(parameter.unit).name),
                            " ", found->value, " from finite values: its reduce dtype, or the sum, overflows"));
        return absl::OkStatus();
      }
    }
    return absl::OkStatus();
  }

 private:
  bool IsFound() const { return bindings_.non_finite->Of(local_).place >= 0; }
  void Report(absl::string_view text) const {
    bindings_.non_finite->Report(local_, id_, absl::StrCat("on rank ", bindings_.ranks[local_], " ", text));
  }

  const Bindings& bindings_;
  const Plan& plan_;
  const int local_;
  const CommandId id_;
  const ScheduledCommand& command_;
  MemoryProbe& probe_;
};

}  // namespace

void FirstNonFinite::Report(int local, CommandId command, std::string text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t place = commands_before_ + command.value();
  Finding& kept = findings_[local];
  if (kept.place < 0 || place < kept.place) kept = {place, std::move(text)};
}

void FirstNonFinite::EndReplay(const Schedule& schedule) {
  const std::lock_guard<std::mutex> lock(mutex_);
  commands_before_ += static_cast<int64_t>(schedule.commands.size());
}

FirstNonFinite::Finding FirstNonFinite::Of(int local) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = findings_.find(local);
  return found == findings_.end() ? Finding() : found->second;
}

absl::Status FindNonFinite(const Bindings& bindings, int local, CommandId id, const ScheduledCommand& command,
                           MemoryProbe& probe, absl::FunctionRef<absl::Status()> launch) {
  const Search search(bindings, local, id, command, probe);
  const bool is_compute = IsCompute(command.command);
  if (is_compute) REPRISE_RETURN_IF_ERROR(search.LookAt(/*read=*/true));
  REPRISE_RETURN_IF_ERROR(launch());
  if (is_compute) return search.LookAt(/*read=*/false);
  const Accumulate* const accumulate = std::get_if<Accumulate>(&command.command);
  return accumulate == nullptr ? absl::OkStatus() : search.LookAtSums(*accumulate);
}

}  // namespace reprise::internal
