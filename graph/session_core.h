// What TrainSession and ForwardSession share: the memory, the recordings and the tensors of one plan.
#ifndef REPRISE_GRAPH_SESSION_CORE_H_
#define REPRISE_GRAPH_SESSION_CORE_H_

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "graph/bindings.h"
#include "graph/find_non_finite.h"
#include "graph/machine.h"
#include "reprise/core/control_block.h"
#include "reprise/graph/sharded_parameters.h"
#include "reprise/graph/train_session.h"

namespace reprise::internal {

// The transient memory of one or more plans, of which one replays at a time.
struct Arena {
  std::shared_ptr<MemoryBlock> communicating, local;
  int64_t replays = 0;     // by whichever plan: what a plan left here is gone once another one has replayed
  int64_t open_step = -1;  // step of the training session that owns the arena; -1: between steps
};
// The bytes by Storage; only the transient ones matter.
absl::StatusOr<std::shared_ptr<Arena>> AllocateArena(Machine& world,
                                                     const std::array<int64_t, kNumStorages>& num_bytes);

struct CoreInputs {
  std::string name = {};  // of a forward variant, for votes
  std::shared_ptr<ShardedParameters> parameters = nullptr;
  Bindings bindings = {};  // without addresses
  RunOptions run = {};
  ControlBlock control = {};  // at first
  std::string transport_reason = {};

  const Plan& plan() const { return *bindings.plan; }
};

// Everything that can be wrong before memory is taken. Plans by PlanTraining or PlanForward, on the transports of the
// world where the options leave them to it, and verifies.
absl::StatusOr<CoreInputs> PrepareCore(std::shared_ptr<ShardedParameters> parameters, const Model& model,
                                       ComputeTable compute, RunOptions run,
                                       absl::StatusOr<Plan> (*plan)(const Model&, int, const PlanOptions&));

// Errors: refusals leave it as it was; a failed replay or copy is kept in status().
class SessionCore {
 public:
  // (c) Takes memory, warms up and records; a vote after each. An arena that could not be had takes part in the vote.
  static absl::StatusOr<std::unique_ptr<SessionCore>> Create(CoreInputs inputs,
                                                             const absl::StatusOr<std::shared_ptr<Arena>>& arena);

  const Plan& plan() const { return *bindings_->plan; }
  Machine& world() const { return inputs_.parameters->machine(); }
  ShardedParameters& parameters() const { return *inputs_.parameters; }
  const std::shared_ptr<Arena>& arena() const { return arena_; }
  const SessionReport& report() const { return report_; }
  const ControlBlock& first_control() const { return inputs_.control; }  // what is the same in every step
  int num_local() const { return static_cast<int>(world().local_ranks().size()); }
  std::byte* address(int local, BufferId buffer) const { return bindings_->addresses[local][buffer.value()]; }

  // OK, or the first failure.
  const absl::Status& status() const { return failed_; }
  // The same, or what keeps the world from running anything now.
  absl::Status CheckUsable() const { return failed_.ok() ? world().CheckUsable() : failed_; }
  // Returns `status`, and keeps it if it is the first failure; for replays and copies.
  absl::Status Keep(absl::Status status);

  // (c) `schedule` is an index into the plan's.
  absl::Status Launch(int schedule);
  // The same on all ranks, and of no other session of the world; 0 where all ranks are local.
  int64_t id() const { return id_; }
  // Whether nothing else replayed in the arena after this core did.
  bool LaunchedLast() const { return last_replay_ == arena_->replays; }
  // The call by which the user has it replay, for messages.
  absl::string_view ReplayingCall() const { return plan().step >= 0 ? "RunMicrobatch" : "Replay"; }
  // Microbatches launched so far.
  int64_t launched() const { return launched_; }

  // Index of a local rank. `what` begins the message.
  absl::StatusOr<int> LocalIndex(absl::string_view what, int rank) const;
  // Writes an input of the next microbatch to its staging slot. Inputs that another thread copied are forgotten, so
  // that a microbatch never mixes those of two.
  absl::Status CopyInput(int rank, TensorId id, DType dtype, const void* values, int64_t num_elements);
  // FailedPrecondition, beginning with `what`, names the first input that this thread did not copy.
  absl::Status CheckInputs(absl::string_view what) const;
  // The inputs of a microbatch are complete: those copied from here on are the next one's.
  void NextInputs();
  // Forgets inputs that no launch has read.
  void DropInputs();
  // FailedPrecondition if this thread has launched something, and another thread since: what the first one would read
  // is not what it made.
  absl::Status CheckReader(absl::string_view what) const;

  // Elements of what `part`, kValue of an output or state or kGradient of an input, can read.
  absl::StatusOr<int64_t> CheckRead(absl::string_view what, int rank, TensorId id, DType dtype, TensorPart part) const;
  // Where an output or state tensor lies.
  absl::StatusOr<void*> Address(int rank, TensorId id) const;
  // After CheckRead.
  absl::Status ReadTensor(int rank, TensorId id, TensorPart part, void* values);

  absl::Status WriteControl(const ControlBlock& control);
  // (c) Between steps. Replays `first`, and `finish` if there is one, eagerly, from `control`, on the inputs that the
  // last launch read. State tensors are as before; so are parameters and optimizer state, which these schedules do not
  // write. Then the first value that is not finite, by command and rank, in a sentence; empty if there was none.
  absl::StatusOr<std::string> FindFirstNonFinite(const ControlBlock& control);
  // On every local rank.
  absl::Status Fill(BufferId buffer, int64_t offset, int64_t num_bytes, uint8_t value);

 private:
  explicit SessionCore(CoreInputs inputs);

  // Bytes from a staging slot of an input of so many to the next one.
  static int64_t SlotStride(int64_t num_bytes) {
    return (num_bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  }
  void ForgetInputs();
  absl::Status TakeMemory();
  void Bind();
  absl::Status CheckExternalApart() const;
  absl::Status WarmUp();
  // Makes a copy of the bindings check writes, with scratch in memory of its own that a guard follows if there is room.
  absl::Status CheckWritesOf(Bindings& bindings);
  absl::Status Reset();
  absl::Status Record();
  absl::Status CheckRecordings();
  // Gives floating-point inputs that are staged values other than zero, half of them negative.
  absl::Status FillInputs();
  // Each schedule, twice the last one, in the order of a step whose gradient is not finite, so that it changes nothing;
  // then what replays may have changed is as before.
  absl::Status ReplayAll(absl::FunctionRef<absl::Status(int schedule)> replay);
  // The bytes of state tensors that are external, or of all of them.
  enum class States { kExternal, kAll };
  absl::StatusOr<std::vector<std::string>> SaveState(States states);
  absl::Status RestoreState(States states, const std::vector<std::string>& saved);
  absl::Status ForEachState(States states, absl::FunctionRef<absl::Status(int local, BufferId buffer)> body);

  // (c) The earliest, as text.
  absl::StatusOr<std::string> FirstOfAllRanks(const FirstNonFinite& found);

  CoreInputs inputs_;
  std::shared_ptr<Arena> arena_;
  StorageBlocks blocks_;
  const std::shared_ptr<Bindings> bindings_;
  std::vector<std::unique_ptr<Executable>> executables_;  // by schedule
  SessionReport report_;
  int64_t id_ = 0;
  std::vector<std::string> launch_names_;  // by schedule, for messages
  absl::Status failed_;
  int64_t last_replay_ = -1;
  int64_t staged_ = 0, launched_ = 0;         // microbatches
  std::vector<std::vector<bool>> is_copied_;  // by local rank and tensor, of the next microbatch
  std::thread::id copier_;                    // the thread that copied them
  const int64_t number_;                      // no other core of the process has it
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_SESSION_CORE_H_
