// The seam between schedules and machines. RecordSchedule walks a schedule once; a recorder turns what it is given into
// an Executable. CUDA capture, CUDA eager, host ranks and text are recorders.
#ifndef REPRISE_GRAPH_RECORDER_H_
#define REPRISE_GRAPH_RECORDER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/core/schedule.h"
#include "reprise/graph/bindings.h"

namespace reprise {

// kGraph: compute functions run while recording only, and a replay repeats what they enqueued. kEager: every replay
// walks the commands and runs them again.
enum class Execution : uint8_t { kGraph, kEager };

// What a recording on a device became: the nodes and edges of its graph. All zero for other recordings.
struct GraphAudit {
  int64_t kernels = 0, copies = 0, fills = 0, empty = 0;  // nodes
  int64_t events = 0;  // nodes that NCCL adds to order its graphs with other work unless NCCL_GRAPH_MIXING_SUPPORT=0
  int64_t others = 0;  // nodes: batched memory operations of copy-engine collectives, host functions of a network
  int64_t edges = 0;
  int64_t replaced_edges = 0;  // programmatic edges into collectives, which are ordinary ones now
  // Pairs of nodes that the graph orders although the schedule leaves their commands concurrent.
  int64_t added_orders = 0;
  // Thread blocks of the largest collective of each lane, together. Those that the schedule leaves concurrent wait for
  // each other across devices, so that they must fit the device at once; otherwise recording is ResourceExhausted.
  int64_t communication_ctas = 0;

  int64_t nodes() const { return kernels + copies + fills + empty + events + others; }
  friend bool operator==(const GraphAudit&, const GraphAudit&) = default;
};

// A recorded schedule. Owns, or shares ownership of, everything it touches.
class Executable {
 public:
  virtual ~Executable() = default;
  // (c) Enqueues the whole schedule for every local rank. May return before it is done: see World::Synchronize. An
  // error says nothing of other executables.
  virtual absl::Status Replay() = 0;
  // (c) With Bindings::write_digests: replays once, untimed, and checks that what was recorded of each compute function
  // writes the same bits as the function did in a checked eager replay. FailedPrecondition, naming both, if not.
  // Does nothing, not even a replay, where no work can be put between the commands of a recording: on devices.
  virtual absl::Status CheckReplay() { return absl::OkStatus(); }
  virtual GraphAudit audit() const { return {}; }
};

// Receives the commands of one schedule in issue order.
//
// Protocol: Begin with one of the plan's schedules, then Record once per command, then Finish exactly once; any other
// call is refused (FailedPrecondition). After an error the recorder is spent: Finish returns that error, and nothing of
// the recording survives.
class Recorder {
 public:
  virtual ~Recorder() = default;
  virtual absl::Status Begin(const Schedule& schedule) = 0;
  virtual absl::Status Record(CommandId id, const ScheduledCommand& command) = 0;
  virtual absl::StatusOr<std::unique_ptr<Executable>> Finish() = 0;
};

// The one walk. An error of a command is returned with its id and text in front.
absl::StatusOr<std::unique_ptr<Executable>> RecordSchedule(const Plan& plan, const Schedule& schedule,
                                                           Recorder& recorder);

// Checks the bindings (InvalidArgument), the protocol, and each command against the plan: waits name recorded commands,
// uses lie inside their buffers, communicators keep to one lane (FailedPrecondition). Then passes it on.
std::unique_ptr<Recorder> NewValidatingRecorder(std::shared_ptr<const Bindings> bindings,
                                                std::unique_ptr<Recorder> inner);

// Appends one line per command to `text`, as in ToText. Its executable does nothing. Borrows both arguments.
std::unique_ptr<Recorder> NewTextRecorder(const Plan& plan, std::string* text);

}  // namespace reprise

#endif  // REPRISE_GRAPH_RECORDER_H_
