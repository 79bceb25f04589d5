// Replays the graphs of one plan again and again, on memory filled with random numbers: a microbatch without the rest
// of a training step.
#ifndef REPRISE_GRAPH_STEP_RUNNER_H_
#define REPRISE_GRAPH_STEP_RUNNER_H_

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/machine.h"
#include "reprise/core/compute.h"
#include "reprise/core/plan.h"

namespace reprise::internal {

class StepRunner {
 public:
  // (c) Takes memory and runs `first` and `body` eagerly, to warm up.
  static absl::StatusOr<std::unique_ptr<StepRunner>> Create(std::shared_ptr<Machine> world, Plan plan,
                                                            const ComputeTable& compute);
  // (c) Records `first` and `body`, once, before anything below.
  absl::Status Record(Execution execution);

  // Resets the counters: the next graph is the step's first.
  absl::Status BeginStep();
  absl::Status ReplayFirst() { return executables_[bindings_->plan->first]->Replay(); }
  absl::Status ReplayBody() { return executables_[bindings_->plan->body]->Replay(); }

  // Waits. The first bytes of every accumulator of the first local rank.
  absl::StatusOr<std::string> ReadAccumulators();
  GraphAudit audit() const { return executables_[bindings_->plan->body]->audit(); }
  const Plan& plan() const { return *bindings_->plan; }
  double record_seconds() const { return record_seconds_; }
  Machine& world() const { return *world_; }

 private:
  explicit StepRunner(std::shared_ptr<Machine> world) : world_(std::move(world)) {}
  absl::Status TakeMemory();
  absl::Status FillRandomly(int local, std::byte* to, int64_t num_bytes) const;
  absl::Status RecordInto(std::vector<std::unique_ptr<Executable>>& executables, Execution execution) const;

  const std::shared_ptr<Machine> world_;
  std::shared_ptr<Bindings> bindings_;
  std::vector<std::unique_ptr<Executable>> executables_;  // by schedule; null for `step`
  double record_seconds_ = 0;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_STEP_RUNNER_H_
