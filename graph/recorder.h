// The seam between schedules and machines. RecordSchedule walks a schedule once; a recorder turns what it is given into
// an Executable. CUDA capture, CUDA eager and host ranks are recorders.
#ifndef REPRISE_GRAPH_RECORDER_H_
#define REPRISE_GRAPH_RECORDER_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/bindings.h"
#include "reprise/core/schedule.h"
#include "reprise/graph/execution.h"

namespace reprise::internal {

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

// Receives the commands of one schedule of the plan that it was made for, once, from RecordSchedule alone.
class Recorder {
 public:
  explicit Recorder(std::shared_ptr<const Bindings> bindings) : bindings_(std::move(bindings)) {}
  virtual ~Recorder() = default;

 protected:
  const std::shared_ptr<const Bindings>& bindings() const { return bindings_; }
  // From Begin on: an index into the plan's schedules, and that schedule.
  int index() const { return index_; }
  const Schedule& schedule() const { return bindings_->plan->schedules[index_]; }

 private:
  friend absl::StatusOr<std::unique_ptr<Executable>> RecordSchedule(int, Recorder&);
  virtual absl::Status Begin() { return absl::OkStatus(); }
  // Each command in issue order; it is the plan's own, which the bindings keep alive.
  virtual absl::Status Record(CommandId, const ScheduledCommand&) { return absl::OkStatus(); }
  virtual absl::StatusOr<std::unique_ptr<Executable>> Finish() = 0;

  const std::shared_ptr<const Bindings> bindings_;
  int index_ = -1;
};

// The one walk over a schedule, by its index among those of the recorder's plan, which Verify must accept: what that
// proves of waits, uses and lanes nothing looks at again. FailedPrecondition without such a schedule, or if the
// recorder has recorded before. An error of a command is returned with its id and text in front; nothing of the
// recording survives an error.
absl::StatusOr<std::unique_ptr<Executable>> RecordSchedule(int schedule, Recorder& recorder);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_RECORDER_H_
