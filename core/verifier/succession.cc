// Check::kSuccession: graphs that may follow one another agree on what they leave and start with. Check::kMeaning
// proves that they leave it.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/verifier/checks.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

absl::string_view NameOfUnit(const Plan& plan, UnitId unit) { return plan.model.unit(unit).name; }

// Lists of a state are sorted by unit.
template <class T>
bool Contains(const std::vector<T>& list, const T& element) {
  const auto found =
      std::lower_bound(list.begin(), list.end(), element, [](const T& a, const T& b) { return a.unit < b.unit; });
  return found != list.end() && *found == element;
}

absl::Status CheckFollows(const Plan& plan, const Schedule& earlier, const Schedule& later) {
  const std::string start = absl::StrCat(later.name, " may follow ", earlier.name, ", but ");
  for (const Resident& resident : later.start.residents) {
    if (Contains(earlier.end.residents, resident)) continue;
    return absl::InternalError(absl::StrCat(
        start, "it starts with ", NameOfUnit(plan, resident.unit), " resident in weight slot ", resident.slot, " as ",
        plan.buffer(resident.buffer).name, ", which ", earlier.name, " does not end with"));
  }
  for (const OutstandingReduction& reduction : later.start.outstanding) {
    if (Contains(earlier.end.outstanding, reduction)) continue;
    return absl::InternalError(absl::StrCat(start, "it starts with the reduction of ", NameOfUnit(plan, reduction.unit),
                                            " in gradient slot ", reduction.slot, ", which ", earlier.name,
                                            " does not leave"));
  }
  for (const OutstandingReduction& reduction : earlier.end.outstanding) {
    if (Contains(later.start.outstanding, reduction)) continue;
    return absl::InternalError(absl::StrCat(start, "it does not take over the reduction of ",
                                            NameOfUnit(plan, reduction.unit), " in gradient slot ", reduction.slot));
  }
  if (earlier.end.gradients == later.start.gradients) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(start, later.start.gradients ? "it starts with unsharded gradients, which the other does not leave"
                                                : "it does not take over the unsharded gradients"));
}

}  // namespace

absl::Status CheckSuccession(const Plan& plan) {
  const Schedule& first = plan.schedules[plan.first];
  const Schedule& body = plan.schedules[plan.body];
  // Nothing is held before the first replay or after a change of parameters.
  const Schedule nothing = {.name = "a change of parameters"};
  REPRISE_RETURN_IF_ERROR(CheckFollows(plan, nothing, first));
  REPRISE_RETURN_IF_ERROR(CheckFollows(plan, first, body));
  REPRISE_RETURN_IF_ERROR(CheckFollows(plan, body, body));
  if (plan.finish >= 0) {
    REPRISE_RETURN_IF_ERROR(CheckFollows(plan, first, plan.schedules[plan.finish]));
    REPRISE_RETURN_IF_ERROR(CheckFollows(plan, body, plan.schedules[plan.finish]));
  }
  if (plan.step < 0) return absl::OkStatus();
  const Schedule& step = plan.schedules[plan.step];
  if (plan.finish >= 0) {
    REPRISE_RETURN_IF_ERROR(CheckFollows(plan, plan.schedules[plan.finish], step));
  } else {
    REPRISE_RETURN_IF_ERROR(CheckFollows(plan, first, step));
    REPRISE_RETURN_IF_ERROR(CheckFollows(plan, body, step));
  }
  if (!step.end.residents.empty()) {
    return absl::InternalError(absl::StrCat(step.name, " changes the weights, but ends with ",
                                            NameOfUnit(plan, step.end.residents[0].unit), " resident"));
  }
  if (!step.start.outstanding.empty() || step.start.gradients) {
    return absl::InternalError(
        absl::StrCat(step.name, " reads the summed gradients, but starts before all are reduced"));
  }
  return CheckFollows(plan, step, first);
}

}  // namespace reprise::internal
