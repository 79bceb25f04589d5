#include "graph/check_writes.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/quoted.h"
#include "graph/compute_binding.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

bool IsWritten(const BufferUse& use) {
  return use.access == Access::kAssign && IsOperand(use.role) && use.num_bytes > 0;
}

// Scratch memory followed by bytes of nobody's.
bool IsGuarded(const Bindings& bindings, const BufferUse& use) {
  return use.role == Role::kScratch && bindings.scratch_guard > 0;
}
constexpr uint8_t kGuard = 0xa5;

uint8_t Pattern(DType dtype) { return IsFloatingPoint(dtype) ? 0xff : 0xa5; }

int64_t CountLeft(const std::byte* data, int64_t num_bytes, DType dtype) {
  const int64_t size = SizeOf(dtype);
  int64_t left = 0;
  for (int64_t first = 0; first < num_bytes; first += size) {
    left += std::all_of(data + first, data + first + size, [&](std::byte b) { return b == std::byte{Pattern(dtype)}; });
  }
  return size > 1 || left == num_bytes ? left : 0;
}

// "backward of call "c0"" for a compute command, empty for any other.
std::string Title(const Plan& plan, const Command& command) {
  const auto title = [&](Phase phase, CallId call) {
    return absl::StrCat(Name(phase), " of call ", Quoted(plan.model.call(call).name));
  };
  if (const Forward* forward = std::get_if<Forward>(&command)) return title(Phase::kForward, forward->call);
  if (const Backward* backward = std::get_if<Backward>(&command)) return title(Phase::kBackward, backward->call);
  return "";
}

std::string WhatOf(const Plan& plan, const BufferUse& use) {
  const bool parameter = use.role == Role::kParameterGradient;
  const std::string& name =
      parameter ? plan.model.parameter(ParameterId(use.id)).spec.name : plan.model.tensor(TensorId(use.id)).spec.name;
  return absl::StrCat(Name(use.role), " of ", parameter ? "parameter " : "tensor ", Quoted(name));
}

}  // namespace

absl::Status CheckWrites(const Bindings& bindings, int local, const ScheduledCommand& command, const WriteProbe& probe,
                         absl::FunctionRef<absl::Status()> launch) {
  const Plan& plan = *bindings.plan;
  const std::string title = Title(plan, command.command);
  if (title.empty()) return launch();
  for (const BufferUse& use : command.uses) {
    if (!IsWritten(use)) continue;
    REPRISE_RETURN_IF_ERROR(probe.fill(bindings.address(local, use), Pattern(ComputeDType(plan, use)), use.num_bytes));
  }
  for (const BufferUse& use : command.uses) {
    if (!IsGuarded(bindings, use)) continue;
    REPRISE_RETURN_IF_ERROR(probe.fill(bindings.address(local, use) + use.num_bytes, kGuard, bindings.scratch_guard));
  }
  REPRISE_RETURN_IF_ERROR(launch());
  for (const BufferUse& use : command.uses) {
    if (!IsWritten(use)) continue;
    const DType dtype = ComputeDType(plan, use);
    std::vector<std::byte> bytes(static_cast<size_t>(use.num_bytes));
    REPRISE_RETURN_IF_ERROR(probe.read(bytes.data(), bindings.address(local, use), use.num_bytes));
    const int64_t left = CountLeft(bytes.data(), use.num_bytes, dtype);
    if (left == 0) continue;
    return absl::FailedPreconditionError(absl::StrCat(title, " on rank ", bindings.ranks[local], " left ", left, " of ",
                                                      use.num_bytes / SizeOf(dtype), " elements of ", WhatOf(plan, use),
                                                      " unwritten; write every element of what the call declares"));
  }
  for (const BufferUse& use : command.uses) {
    if (!IsGuarded(bindings, use)) continue;
    std::vector<std::byte> bytes(static_cast<size_t>(bindings.scratch_guard));
    REPRISE_RETURN_IF_ERROR(
        probe.read(bytes.data(), bindings.address(local, use) + use.num_bytes, bindings.scratch_guard));
    const auto written = std::find_if(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{kGuard}; });
    if (written == bytes.end()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        title, " on rank ", bindings.ranks[local], " wrote byte ", use.num_bytes + (written - bytes.begin()),
        " of scratch, but the call declares scratch_bytes ", use.num_bytes, "; raise CallSpec::scratch_bytes"));
  }
  return absl::OkStatus();
}

}  // namespace reprise::internal
