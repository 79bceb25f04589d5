// What every recorder asks of its caller.
#ifndef REPRISE_GRAPH_RECORDING_PROTOCOL_H_
#define REPRISE_GRAPH_RECORDING_PROTOCOL_H_

#include <cstddef>

#include "absl/status/status.h"
#include "reprise/core/plan.h"
#include "reprise/graph/bindings.h"
#include "reprise/graph/recorder.h"

namespace reprise::internal {

// InvalidArgument unless there is a plan, and an address for each of its buffers that has bytes on each rank.
absl::Status CheckBindings(const Bindings* bindings);
// InvalidArgument unless it is one of the enumerators.
absl::Status CheckExecution(Execution execution);

// Begin with a schedule of the plan, Record each of its commands in issue order, Finish once. Each function refuses
// what is not that (FailedPrecondition), and repeats the first error kept.
class RecordingProtocol {
 public:
  // The plan must outlive this.
  absl::Status Begin(const Plan& plan, const Schedule& schedule);
  absl::Status Record(CommandId id, const ScheduledCommand& command);
  absl::Status Finish();
  // Index of the schedule begun among the plan's. Only after Begin succeeded.
  int schedule() const { return index_; }
  // Returns `status`, and keeps it if it is the first error.
  absl::Status Keep(absl::Status status);

 private:
  absl::Status CheckBegin(const Plan& plan, const Schedule& schedule);
  absl::Status CheckRecord(CommandId id, const ScheduledCommand& command) const;

  enum class State { kNew, kRecording, kFinished };
  State state_ = State::kNew;
  const Schedule* schedule_ = nullptr;  // the plan's own
  int index_ = 0;
  size_t recorded_ = 0;
  absl::Status status_;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_RECORDING_PROTOCOL_H_
