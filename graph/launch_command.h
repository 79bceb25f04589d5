// What each command that is not a collective does, in kernels on a stream: the same for every recorder.
#ifndef REPRISE_GRAPH_LAUNCH_COMMAND_H_
#define REPRISE_GRAPH_LAUNCH_COMMAND_H_

#include <type_traits>

#include "absl/status/status.h"
#include "graph/bindings.h"
#include "reprise/core/schedule.h"
#include "reprise/core/stream.h"

namespace reprise::internal {

template <class Command, class... Commands>
concept OneOf = (std::is_same_v<Command, Commands> || ...);
// The commands of one rank alone. Others are collectives: what visits commands has a case for each of these.
template <class Command>
concept OneRankCommand = OneOf<Command, Begin, NextMicrobatch, StageInputs, Forward, Backward, PackGradients,
                               Accumulate, RecordLoss, UpdateParameters, RefreshShards, PublishMetrics, End>;

// Enqueues the command's work for local rank `local`; Begin and End have none. Runs compute functions. Internal for a
// collective, or a command without the uses that its kind needs.
absl::Status LaunchCommand(const Bindings& bindings, int local, const ScheduledCommand& command, Stream stream);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_LAUNCH_COMMAND_H_
