// Replays a HostRecording in the order that its world asks for.
#ifndef REPRISE_GRAPH_HOST_HOST_EXECUTABLE_H_
#define REPRISE_GRAPH_HOST_HOST_EXECUTABLE_H_

#include <memory>

#include "absl/status/status.h"
#include "graph/host/host_profile.h"
#include "graph/host/host_recording.h"
#include "graph/recorder.h"

namespace reprise::internal {

std::unique_ptr<Executable> NewHostExecutable(HostRecording recording, std::shared_ptr<HostRuns> runs);

// FailedPrecondition, with each blocked command and what it waits for, if lanes and waits let no order complete. All
// ranks run the same schedule, so one rank is blocked exactly where all are.
absl::Status CheckRunnable(const Plan& plan, const Schedule& schedule);

// Command after command, the ranks side by side; but compute functions one rank after another, on this thread. Ranks
// side by side share the time of the section.
absl::Status ReplayInIssueOrder(const HostRecording& recording, ReplayTimes& times);
// One thread per rank and lane. They meet only where the schedule has a wait or a collective. A collective's time is
// with the wait for the other ranks.
absl::Status ReplayOnThreads(const HostRecording& recording, ReplayTimes& times);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_HOST_HOST_EXECUTABLE_H_
