// Runs the schedules of a plan on any world, without a session: takes memory, binds, records, replays, reads.
#ifndef REPRISE_TESTS_CONFORMANCE_PLAN_RUNNER_H_
#define REPRISE_TESTS_CONFORMANCE_PLAN_RUNNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "graph/machine.h"
#include "reprise/core/compute.h"
#include "reprise/core/control_block.h"
#include "reprise/core/plan.h"

namespace reprise::testing {

struct RunnerOptions {
  Execution execution = Execution::kGraph;
  Optimizer optimizer = AdamW{};
  float clip_norm = 0;
  bool check_writes = false;
  int64_t guard_bytes = 0;  // before and after each block of memory, see CheckGuards
};

// The value of one element of a parameter, or of an input on one rank.
using ParameterValue = std::function<float(ParameterId, int64_t element)>;
using InputValue = std::function<double(int rank, int64_t microbatch, TensorId, int64_t element)>;

class PlanRunner {
 public:
  // Records every schedule. Persistent memory is zero, weights and masters hold `parameters`.
  static absl::StatusOr<std::unique_ptr<PlanRunner>> Create(std::shared_ptr<World> world, Plan plan,
                                                            ComputeTable compute, const ParameterValue& parameters,
                                                            RunnerOptions options = {});

  // Starts a step: what the control block holds per step, with the counters reset.
  absl::Status BeginStep(int microbatches);
  // Stages the inputs of the next graph's microbatches, then replays one schedule, an index into Plan::schedules.
  absl::Status ReplayGraph(int schedule, const InputValue& inputs);
  GraphAudit audit(int schedule) const { return executables_[schedule]->audit(); }
  absl::Status Replay(int schedule) { return executables_[schedule]->Replay(); }
  // A whole step, the microbatches numbered from `first_microbatch`.
  absl::Status RunStep(int microbatches, const InputValue& inputs);

  // Sets every byte of a buffer, on all local ranks.
  absl::Status Fill(BufferId buffer, uint8_t value);
  // Waits. The bytes of a buffer on a local rank.
  absl::StatusOr<std::string> Read(int local, BufferId buffer);
  // Waits. A buffer's values of type T, which must be its dtype.
  template <class T>
  absl::StatusOr<std::vector<T>> ReadAs(int local, BufferId buffer) {
    const absl::StatusOr<std::string> bytes = Read(local, buffer);
    if (!bytes.ok()) return bytes.status();
    std::vector<T> values(bytes->size() / sizeof(T));
    std::copy_n(bytes->data(), values.size() * sizeof(T), reinterpret_cast<char*>(values.data()));
    return values;
  }
  // Waits. All persistent bytes of all local ranks but those of unsharded gradients, which hold nothing once they are
  // reduced: what a run leaves behind.
  absl::StatusOr<std::string> ReadAll();

  // Waits. Internal if a byte has changed that no buffer has: of a guard, or between persistent buffers.
  absl::Status CheckGuards();

  const Plan& plan() const { return *bindings_->plan; }
  internal::Machine& world() { return *world_; }

 private:
  explicit PlanRunner(std::shared_ptr<World> world) : world_(internal::MachineOf(std::move(world))) {}
  absl::Status TakeMemory();
  absl::Status CheckGuards(int local, Storage storage);
  absl::Status WriteParameters(const ParameterValue& value);
  absl::Status StageInputs(const InputValue& value);
  absl::Status WriteFloats(int local, BufferId buffer, DType dtype, absl::Span<const float> values);
  int num_local() const { return static_cast<int>(bindings_->ranks.size()); }

  const std::shared_ptr<internal::Machine> world_;
  internal::StorageBlocks blocks_;
  std::shared_ptr<internal::Bindings> bindings_;
  std::vector<std::unique_ptr<internal::Executable>> executables_;
  int64_t guard_bytes_ = 0;
  int64_t step_ = 0;
  int64_t staged_ = 0;  // microbatches, over all steps
};

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_CONFORMANCE_PLAN_RUNNER_H_
