#include "reprise/core/verifier.h"

#include "absl/strings/str_cat.h"
#include "core/verifier/checks.h"

namespace reprise {
namespace {

using internal::CheckedSchedule;

struct CheckFunctions {
  Check check;
  absl::Status (*of_plan)(const Plan&);
  absl::Status (*of_schedule)(const CheckedSchedule&);
};
constexpr CheckFunctions kChecks[] = {
    {Check::kData, nullptr, internal::CheckData},
    {Check::kOrder, nullptr, internal::CheckSlots},
    {Check::kFork, nullptr, internal::CheckForks},
    {Check::kJoin, nullptr, internal::CheckJoins},
    {Check::kMemory, internal::CheckPersistentBuffers, internal::CheckLives},
    {Check::kSuccession, internal::CheckSuccession, nullptr},
};

Violation MakeViolation(Check check, const std::string& schedule, const absl::Status& status) {
  return {check, schedule, std::string(status.message())};
}

std::vector<Violation> FindFormViolations(const Plan& plan) {
  if (const absl::Status status = internal::CheckForm(plan); !status.ok()) {
    return {MakeViolation(Check::kForm, "", status)};
  }
  for (const Schedule& schedule : plan.schedules) {
    const absl::Status status = internal::CheckForm(plan, schedule);
    if (!status.ok()) return {MakeViolation(Check::kForm, schedule.name, status)};
  }
  return {};
}

}  // namespace

absl::string_view Name(Check check) {
  switch (check) {
    case Check::kForm:
      return "form";
    case Check::kData:
      return "data";
    case Check::kOrder:
      return "order";
    case Check::kFork:
      return "fork";
    case Check::kJoin:
      return "join";
    case Check::kMemory:
      return "memory";
    case Check::kSuccession:
      return "succession";
    case Check::kMeaning:
      return "meaning";
  }
  return "unknown";
}

std::vector<Violation> FindViolations(const Plan& plan, Check last) {
  std::vector<Violation> violations = FindFormViolations(plan);
  if (!violations.empty()) return violations;
  const std::vector<CheckedSchedule> schedules = [&] {
    std::vector<CheckedSchedule> checked;
    checked.reserve(plan.schedules.size());
    for (const Schedule& schedule : plan.schedules) checked.emplace_back(plan, schedule);
    return checked;
  }();
  for (const CheckFunctions& functions : kChecks) {
    if (functions.check > last) break;
    std::string name;
    absl::Status status;
    if (functions.of_plan != nullptr) status = functions.of_plan(plan);
    for (const CheckedSchedule& schedule : schedules) {
      if (!status.ok() || functions.of_schedule == nullptr) break;
      name = schedule.schedule().name;
      status = functions.of_schedule(schedule);
    }
    if (!status.ok()) violations.push_back(MakeViolation(functions.check, name, status));
  }
  if (last < Check::kMeaning) return violations;
  std::string name;
  const absl::Status status = internal::CheckMeaning(plan, name);
  if (!status.ok()) violations.push_back(MakeViolation(Check::kMeaning, name, status));
  return violations;
}

absl::Status Verify(const Plan& plan) {
  const std::vector<Violation> violations = FindViolations(plan);
  if (violations.empty()) return absl::OkStatus();
  const Violation& first = violations.front();
  return absl::InternalError(absl::StrCat("the plan is not safe to record: check ", Name(first.check), " failed",
                                          first.schedule.empty() ? "" : absl::StrCat(" in schedule ", first.schedule),
                                          ": ", first.message, "; please report it with the model and the options"));
}

}  // namespace reprise
