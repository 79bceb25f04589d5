// What PlanOptions::transport_choices may hold.
#ifndef REPRISE_CORE_POLICY_TRANSPORT_CHOICES_H_
#define REPRISE_CORE_POLICY_TRANSPORT_CHOICES_H_

#include <vector>

#include "absl/status/status.h"
#include "reprise/core/plan.h"

namespace reprise::internal {

// InvalidArgument unless they name transports by ascending bytes.
absl::Status CheckTransportChoices(const std::vector<TransportChoice>& choices);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_POLICY_TRANSPORT_CHOICES_H_
