// Replays commands in any order that lanes and waits allow, to show that no other order is needed.
#ifndef REPRISE_GRAPH_HOST_ADVERSARIAL_REPLAY_H_
#define REPRISE_GRAPH_HOST_ADVERSARIAL_REPLAY_H_

#include "absl/status/status.h"
#include "graph/host/host_profile.h"
#include "graph/host/host_recording.h"

namespace reprise::internal {

// One order, drawn from `random`. A lane of a rank begins its next command when its waits are complete, and ends it at
// some later moment, which is when it reads and writes; a collective ends on all ranks together. Between begin and end
// what the command assigns is poisoned: see TransientPoison.
absl::Status ReplayAdversarially(const HostRecording& recording, SplitMix64& random, ReplayTimes& times);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_HOST_ADVERSARIAL_REPLAY_H_
