// The side of rank 0: it listens until every other rank is connected.
#ifndef REPRISE_GRAPH_COMM_GATHER_RANKS_H_
#define REPRISE_GRAPH_COMM_GATHER_RANKS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "graph/comm/channel.h"
#include "reprise/graph/launch_environment.h"

namespace reprise::internal {

// Channels to all ranks, by rank; that to rank 0 is not open. Listens where `launch` says, publishes the place if it is
// a file, and tells every rank when all are there, or why not: DeadlineExceeded names the ranks that did not come;
// FailedPrecondition if two processes say that they are one rank, or one has another world size or protocol version.
// Strangers are turned away and hold nothing up.
absl::StatusOr<std::vector<Channel>> GatherRanks(const LaunchEnvironment& launch, absl::Duration deadline);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_GATHER_RANKS_H_
