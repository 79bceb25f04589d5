// Collectives between ranks that live in one process.
#ifndef REPRISE_GRAPH_HOST_HOST_COLLECTIVES_H_
#define REPRISE_GRAPH_HOST_HOST_COLLECTIVES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "graph/host/host_recording.h"

namespace reprise::internal {

// The parts of an AllGather, ReduceScatter or SumNorm, by rank. Internal for any other command.
absl::StatusOr<std::vector<HostWork>> CollectiveWork(const Bindings& bindings, const ScheduledCommand& command);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_HOST_HOST_COLLECTIVES_H_
