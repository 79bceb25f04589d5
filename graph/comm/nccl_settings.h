// The NCCL_ variables of the environment that ranks compare before they open a communicator.
#ifndef REPRISE_GRAPH_COMM_NCCL_SETTINGS_H_
#define REPRISE_GRAPH_COMM_NCCL_SETTINGS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace reprise::internal {

// Must all ranks give this variable the same value? An unknown one must: what differs by nature names parts of a host,
// and those names are few and known, while a setting that NCCL's ranks do not compare themselves ends in a hang.
bool MustBeEqual(absl::string_view variable);

// LaunchEnvironment::nccl_settings of the variables "NAME=value", which end with a null.
std::vector<std::string> NcclSettings(const char* const* variables);

// One rank's settings as bytes to exchange.
std::string ToBytes(const std::vector<std::string>& settings);
// FailedPrecondition, naming the first variable that differs with both values and their ranks.
absl::Status CheckSameNcclSettings(absl::Span<const std::string> bytes_by_rank);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_NCCL_SETTINGS_H_
