// What the options of transports may hold.
#ifndef REPRISE_CORE_POLICY_TRANSPORT_CHECKS_H_
#define REPRISE_CORE_POLICY_TRANSPORT_CHECKS_H_

#include <vector>

#include "absl/status/status.h"
#include "reprise/core/transport.h"

namespace reprise::internal {

// InvalidArgument unless they name transports by ascending bytes, and those that exchange can add as `sum` says.
absl::Status CheckTransportChoices(const std::vector<TransportChoice>& choices, Sum sum);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_POLICY_TRANSPORT_CHECKS_H_
