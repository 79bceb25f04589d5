// The verifier's checks, one file each. Every function returns OK or Internal with the first violation, in the words of
// Violation::message. All but CheckForm and its parts need a plan that has passed CheckForm.
#ifndef REPRISE_CORE_VERIFIER_CHECKS_H_
#define REPRISE_CORE_VERIFIER_CHECKS_H_

#include <string>

#include "absl/status/status.h"
#include "core/verifier/schedule.h"

namespace reprise::internal {

// Check::kForm: of everything but the schedules, then of one schedule, which needs the first to have passed.
absl::Status CheckForm(const Plan& plan);
absl::Status CheckForm(const Plan& plan, const Schedule& schedule);

// Check::kData.
absl::Status CheckData(const CheckedSchedule& schedule);

// Check::kOrder.
absl::Status CheckSlots(const CheckedSchedule& schedule);

// Check::kFork and Check::kJoin.
absl::Status CheckForks(const CheckedSchedule& schedule);
absl::Status CheckJoins(const CheckedSchedule& schedule);

// Check::kMemory: of persistent storages, then of the transient arenas in one schedule.
absl::Status CheckPersistentBuffers(const Plan& plan);
absl::Status CheckLives(const CheckedSchedule& schedule);

// Check::kSuccession: that every graph starts as the one before it ends.
absl::Status CheckSuccession(const Plan& plan);

// Check::kMeaning. `schedule` becomes the name of the one that is wrong, if it is one.
absl::Status CheckMeaning(const Plan& plan, std::string& schedule);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_VERIFIER_CHECKS_H_
