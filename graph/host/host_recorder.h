// Records schedules for ranks of this process. kGraph keeps what compute functions and kernels enqueue; kEager keeps
// the commands and runs them anew at every replay.
#ifndef REPRISE_GRAPH_HOST_HOST_RECORDER_H_
#define REPRISE_GRAPH_HOST_HOST_RECORDER_H_

#include <memory>

#include "graph/host/host_recording.h"
#include "graph/recorder.h"

namespace reprise::internal {

// `bindings` binds all ranks of the world.
std::unique_ptr<Recorder> NewHostRecorder(Execution execution, std::shared_ptr<const Bindings> bindings,
                                          std::shared_ptr<HostRuns> runs);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_HOST_HOST_RECORDER_H_
