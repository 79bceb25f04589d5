// Check::kForm of everything but the schedules: what the other checks take for granted.
#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/policy/transport_checks.h"
#include "core/verifier/checks.h"
#include "core/verifier/range.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// In bytes or elements; no offset that is computed from such sizes overflows.
constexpr int64_t kMaxLayout = int64_t{1} << 58;

absl::Status CheckOptions(const Plan& plan) {
  const PlanOptions& options = plan.options;
  if (!options.prefetch_depth || !options.weight_slots || !options.gradient_slots || !options.microbatches_per_graph ||
      !options.sum) {
    return absl::InternalError("an option of the plan is unset");
  }
  const bool known = IsKnown(options.residency, Residency::kOff) && IsKnown(options.reduce, Reduce::kOncePerStep) &&
                     IsKnown(options.tail, Tail::kCarried) && options.sum <= Sum::kNccl &&
                     IsFloatingPoint(options.reduce_dtype) && IsFloatingPoint(options.master_dtype);
  if (!known) return absl::InternalError("an option of the plan has a value that does not exist");
  if (const absl::Status status = CheckTransportChoices(options.transports, *options.sum); !status.ok()) {
    return absl::InternalError(absl::StrCat("the plan's options: ", status.message()));
  }
  const int64_t depth = *options.prefetch_depth, gradient_slots = *options.gradient_slots;
  const int64_t microbatches = *options.microbatches_per_graph;
  if (microbatches < 1) {
    return absl::InternalError(absl::StrCat("the plan has ", microbatches, " microbatches per graph, not at least 1"));
  }
  if (depth >= 0 && plan.weight_slots >= 0 && gradient_slots >= 0 && plan.dedicated_gradient_slots >= 0) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("an option of the plan is negative: prefetch depth ", depth,
                                          ", weight slots ", plan.weight_slots, ", gradient slots ", gradient_slots,
                                          " and ", plan.dedicated_gradient_slots, " held"));
}

absl::Status CheckIndices(const Plan& plan) {
  const int64_t schedules = static_cast<int64_t>(plan.schedules.size());
  const auto optional = [&](int index) { return index == -1 || InRange(index, schedules); };
  if (!InRange(plan.first, schedules) || !InRange(plan.body, schedules) || !optional(plan.finish) ||
      !optional(plan.step)) {
    return absl::InternalError(absl::StrCat("first ", plan.first, ", body ", plan.body, ", finish ", plan.finish,
                                            " or step ", plan.step, " is not among the ", schedules, " schedules"));
  }
  for (const int last : {plan.finish, plan.step}) {
    if (last < 0 || (last != plan.first && last != plan.body && plan.finish != plan.step)) continue;
    return absl::InternalError(absl::StrCat("schedule ", last, " is more than one of first ", plan.first, ", body ",
                                            plan.body, ", finish ", plan.finish, " and step ", plan.step));
  }
  const size_t units = plan.model.units().size();
  if (plan.layout.units.size() != units || plan.unit_buffers.size() != units || plan.unit_policies.size() != units) {
    return absl::InternalError(absl::StrCat("layout, buffers and policies are of ", plan.layout.units.size(), ", ",
                                            plan.unit_buffers.size(), " and ", plan.unit_policies.size(),
                                            " units, the model has ", units));
  }
  for (size_t unit = 0; unit < units; ++unit) {
    const UnitLayout& layout = plan.layout.units[unit];
    const BufferId full = plan.unit_buffers[unit].unsharded_gradient;
    // Where gradients are reduced once per step each unit that is trained sums its own, and nowhere else is such a sum.
    const bool sums =
        plan.options.reduce == Reduce::kOncePerStep && plan.step >= 0 &&
        std::any_of(layout.groups.begin(), layout.groups.end(), [](const FlatGroup& group) { return group.trainable; });
    const bool known = full.valid() == sums && (!sums || InRange(full, plan.buffers));
    if (known) continue;
    return absl::InternalError(absl::StrCat("the unsharded gradient of ", plan.model.units()[unit].name, " is buffer ",
                                            full.value(), ", which ",
                                            sums ? "does not exist" : "its groups or the options have no use for"));
  }
  return absl::OkStatus();
}

// As the options say, by the bytes of a gathered copy.
absl::Status CheckPolicies(const Plan& plan) {
  for (size_t unit = 0; unit < plan.unit_policies.size(); ++unit) {
    const UnitPolicy needed = {TransportsFor(plan.options.transports, plan.layout.units[unit].gathered_bytes),
                               *plan.options.sum};
    if (plan.unit_policies[unit] == needed) continue;
    const auto text = [](const UnitPolicy& policy) {
      return absl::StrCat(ToText(EveryUnit(policy.transports)), " and sum ", Name(policy.sum));
    };
    return absl::InternalError(absl::StrCat(plan.model.units()[unit].name, " has transports ",
                                            text(plan.unit_policies[unit]), ", but the options give it ",
                                            text(needed)));
  }
  return absl::OkStatus();
}

// That it is the model's, and small enough for all that is computed from it.
absl::Status CheckLayout(const Plan& plan) {
  const absl::StatusOr<ModelLayout> layout = LayOut(plan.model, plan.world_size());
  if (!layout.ok() || *layout != plan.layout) {
    return absl::InternalError(
        absl::StrCat("the plan's layout is not that of its model on ", plan.world_size(), " ranks"));
  }
  int64_t elements = 0;  // of all groups
  for (const UnitLayout& unit : plan.layout.units) {
    for (const FlatGroup& group : unit.groups) {
      if (!InRange(group.num_elements, kMaxLayout - elements)) {
        return absl::InternalError(absl::StrCat("the plan's layout has ", kMaxLayout, " elements or more"));
      }
      elements += group.num_elements;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMemory(const MemoryPlan& memory) {
  int64_t total = 0, total_bound = 0;
  for (int s = 0; s < kNumStorages; ++s) {
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
    const int64_t num_bytes = memory.num_bytes[s], bound = memory.lower_bound[s];
    if (num_bytes < 0 || num_bytes > kMax - total || bound < 0 || bound > kMax - total_bound) {
      return absl::InternalError(absl::StrCat(num_bytes, " bytes of storage ", Name(static_cast<Storage>(s)),
                                              ", at least ", bound, ", are negative, or exceed ", kMax,
                                              " with the storages before it"));
    }
    total += num_bytes;
    total_bound += bound;
  }
  return absl::OkStatus();
}

absl::Status CheckBuffers(const Plan& plan) {
  for (const Buffer& buffer : plan.buffers) {
    const int64_t storage = static_cast<int64_t>(buffer.storage);
    if (!InRange(storage, kNumStorages)) {
      return absl::InternalError(absl::StrCat(buffer.name, " is in storage ", storage, ", which does not exist"));
    }
    const std::string place = absl::StrCat(buffer.name, " of ", buffer.num_bytes, " bytes at offset ", buffer.offset);
    if (buffer.num_bytes < 0 || buffer.offset < 0 || buffer.offset % kBufferAlignment != 0) {
      return absl::InternalError(
          absl::StrCat(place, ": sizes are not negative and offsets are multiples of ", kBufferAlignment));
    }
    const int64_t available = plan.memory.num_bytes[storage];
    if (buffer.storage == Storage::kExternal || buffer.offset <= available - buffer.num_bytes) continue;
    return absl::InternalError(
        absl::StrCat(place, " is not inside the ", available, " bytes of storage ", Name(buffer.storage)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckForm(const Plan& plan) {
  REPRISE_RETURN_IF_ERROR(CheckOptions(plan));
  REPRISE_RETURN_IF_ERROR(CheckLayout(plan));
  REPRISE_RETURN_IF_ERROR(CheckIndices(plan));
  REPRISE_RETURN_IF_ERROR(CheckPolicies(plan));
  REPRISE_RETURN_IF_ERROR(CheckMemory(plan.memory));
  return CheckBuffers(plan);
}

}  // namespace reprise::internal
