// A world of host ranks in several processes, one rank in each: what a CudaWorld is, without devices. In a HostWorld
// all ranks make the same calls, because one process makes them; here they can differ.
#ifndef REPRISE_TESTS_TESTING_PROCESS_WORLD_H_
#define REPRISE_TESTS_TESTING_PROCESS_WORLD_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "reprise/graph/launch_environment.h"
#include "reprise/graph/world.h"

namespace reprise::testing {

// (c) Replays run command after command, in issue order, and return when they are done. Collectives go over connections
// of their own: a rank that waits in one hears meanwhile what the others say, and gives up with that, or at the
// deadline; then, as on a device, nothing of this world can be replayed any more. Numbers are those of a HostWorld of
// as many ranks, bit for bit.
absl::StatusOr<std::shared_ptr<World>> CreateProcessWorld(const LaunchEnvironment& launch, absl::Duration deadline);

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_TESTING_PROCESS_WORLD_H_
