// The side of the ranks that look for rank 0 among strangers.
#ifndef REPRISE_GRAPH_COMM_FIND_RANK0_H_
#define REPRISE_GRAPH_COMM_FIND_RANK0_H_

#include "absl/status/statusor.h"
#include "graph/comm/channel.h"
#include "graph/comm/deadline.h"
#include "reprise/graph/launch_environment.h"

namespace reprise::internal {

// Rank 0 takes the first free port of this many from LaunchEnvironment::port: enough for the jobs of one host and the
// stores of their launchers.
inline constexpr int kNumPorts = 32;

// Waits until rank 0 says that all ranks are connected, or why it gave up.
absl::Status AwaitBegin(Channel& rank0, const LaunchEnvironment& launch, const Deadline& deadline);

// Looks for rank 0, wherever `launch` says that it may be, until all ranks are connected. DeadlineExceeded says what
// was found instead.
absl::StatusOr<Channel> FindRank0(const LaunchEnvironment& launch, absl::Duration deadline);

// How much longer than rank 0 the others wait, so that they hear its verdict, which names the ranks that are missing;
// and how long rank 0 stays to tell it to those that come late.
absl::Duration GraceOf(absl::Duration deadline);
absl::Duration WithGrace(absl::Duration deadline);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_FIND_RANK0_H_
