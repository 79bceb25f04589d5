// Training steps by replay.
//
//   BeginStep(values); then, `microbatches` times: CopyInput for every input and local rank, RunMicrobatch();
//   EndStep().
//
// The loop is the same for every plan. Where a graph spans several microbatches, the launch happens when the last
// one's inputs are staged.
//
// Errors: a call in the wrong order or with wrong arguments is refused (FailedPrecondition, InvalidArgument) and
// changes nothing. A failed replay is final and closes the step: the session repeats that error, other sessions do not
// have it. Threads: as for the World, and from BeginStep to EndStep or DiscardGradients a step belongs to the thread
// that began it: of the calls of others only DiscardGradients, PollMetrics and Synchronize are not refused. A thread
// reads outputs of its own steps: once another thread has run one since, it is refused; a thread that has run none
// reads what is there. Functions marked (c) are collective.
//
// Ranks that differ: BeginStep tells rank 0, without waiting, the step's values, its number, the session and the
// version of the parameters, and what was launched so far. EndStep launches the update only once these are equal on all
// ranks; otherwise it is FailedPrecondition on all of them with what differs, both values and the ranks, which is final
// for the session, and no parameter has changed. As all ranks have launched the same until then, unless microbatches
// differ, their devices are in order, and a new session may go on. What this costs is in graph/README.md. The norm's
// payload carries the same on the device: an update of which ranks gave different steps is skipped
// (SkipReason::kRanksDiffer), and the session that sees it fails.
#ifndef REPRISE_GRAPH_TRAIN_SESSION_H_
#define REPRISE_GRAPH_TRAIN_SESSION_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "reprise/core/compute.h"
#include "reprise/core/plan.h"
#include "reprise/core/status_macros.h"
#include "reprise/graph/execution.h"
#include "reprise/graph/optimizers.h"
#include "reprise/graph/sharded_parameters.h"
#include "reprise/graph/world.h"

namespace reprise {

namespace internal {
enum class TensorPart { kValue, kGradient };  // what a session reads
}

// Memory of the user's for an external tensor on one local rank: at least the tensor's bytes, aligned to 16. Must
// outlive the session, and is the user's to fill: no CopyInput for it. Must not overlap another external buffer of any
// local rank, except that inputs of different ranks may. In a ForwardSession it serves every variant to which `tensor`
// is external; buffers that serve no variant together may overlap.
struct ExternalBuffer {
  int rank = 0;
  TensorId tensor;
  void* address = nullptr;
  int64_t num_bytes = 0;
};

struct RunOptions {
  PlanOptions plan = {};
  Execution execution = Execution::kGraph;
  // At Create: refuse compute functions that break their contract (see ComputeFunction), by call, tensor or parameter,
  // and rank: what they leave unwritten, or do not write when they are called again or captured; on the host, what they
  // write while they are called, and results that depend on what they read then: meanwhile operands hold other bytes;
  // outputs and gradients to assign whose bits depend on what memory held before; gradients to add to that are assigned
  // or that are no sum (below); changes of what they may only read; writes just behind their scratch memory, if there
  // is room for another one. Functions must give the same bits whenever they run on the same bytes. The same on all
  // ranks.
  //
  // A sum is one that grows by the same from zero, to a, and from s, to b: |b - a - s| may be r (|a| + |b| + s), where
  // r is 2^-12 in fp32 and 2^-4 in bf16. Each rounding is at most 2^-24 or 2^-8 of a partial sum, so that this allows
  // for 4096 or 16 terms that are added one by one. s is the least of 6e-10 x 4^n that no |a| exceeds (at most 8e37),
  // so that few terms are lost in it; where it is lost itself, in large terms that cancel, 65536 and more times that.
  // Of a gradient of more than 8 MiB, eight parts of 1 MiB are compared. More terms are summed apart and added once.
  //
  // What it cannot see: faults that need other values than those of warm-up, as of a padding index, of a mask, of a
  // branch that is not taken. There, floating-point inputs that are copied hold 0.0115 in their first half and -0.023
  // in the other, integers 0; state begins with zeros; external tensors and parameters are as they are, zero if never
  // set, and what is made of zeros hides faults: a call that adds nothing looks like one that adds zeros, and so does a
  // change in place that gives the same bits. Reads, while a function is called, of external inputs, of the control
  // block, of what a function keeps of its own, and on devices of anything. Writes to memory that the call does not
  // declare, as behind an output, except just behind scratch. Wrong results that are always the same.
  //
  // It costs time at Create alone: in warm-up each Forward and Backward of each distinct schedule runs twice, three
  // times if it adds to a gradient (up to nine more times where s is lost), instead of once, and on the host once more
  // from its recording. Off, a broken function trains on silently: switch it off where Create takes too long, or for
  // functions that sum by atomics.
  bool check_writes = true;
  std::vector<ExternalBuffer> external = {};
};

struct TrainOptions {
  RunOptions run = {};
  Optimizer optimizer = AdamW{};
  std::optional<float> clip_norm = {};  // positive; limits the norm of the divided gradient
  float loss_scale = 1;                 // a power of two
  uint64_t seed = 0;                    // ControlBlock::seed
};

// Uploaded once, at BeginStep; the same on all ranks.
struct StepValues {
  // Must be given. 0, as at the start of a warm-up, updates optimizer state but no parameter.
  std::optional<float> learning_rate = {};
  int microbatches = 1;  // a multiple of microbatches_per_graph
  // gradient = sum over ranks and microbatches / divisor, divided once, in the step. 0: world size x microbatches, the
  // mean; 1: the sum; a global token count: the mean over tokens.
  double gradient_divisor = 0;
};

// What creating the session took, and made.
struct SessionReport {
  int64_t persistent_bytes = 0, transient_bytes = 0;  // taken per rank; equal to the plan's
  double seconds = 0;                                 // warm-up and recording
  std::vector<GraphAudit> graphs = {};                // by Plan::schedules
  MemoryUse memory = {};                              // of the world, after recording
  std::string transport_reason = {};                  // why the plan has its transports; empty if they were given
};

class TrainSession {
 public:
  // (c) Plans, agrees, takes memory, warms up (compute functions run at least twice, on inputs of zeros, or as
  // RunOptions::check_writes has them) and records.
  // Warm-up leaves parameters as they are; they may be set later, before the first step.
  static absl::StatusOr<std::unique_ptr<TrainSession>> Create(std::shared_ptr<ShardedParameters> parameters,
                                                              const Model& model, ComputeTable compute,
                                                              TrainOptions options);
  ~TrainSession();

  // (c) Refused without a learning rate, and while a parameter was never set; by a rank in several processes for all
  // of them.
  absl::Status BeginStep(const StepValues& values);
  // One input of the next microbatch of a local rank; `values`, as a vector or a span, is free on return.
  // InvalidArgument for another dtype or size, or a tensor that is not an input.
  template <class Values>
  absl::Status CopyInput(int rank, TensorId id, const Values& values) {
    const auto span = absl::MakeConstSpan(values);
    return CopyInputBytes(rank, id, DTypeOf<typename decltype(span)::value_type>::value, span.data(),
                          static_cast<int64_t>(span.size()));
  }
  absl::Status RunMicrobatch();  // (c) `microbatches` times; refused while an input is missing
  absl::Status EndStep();        // (c) norm, optimizer, shard refresh; waits until rank 0 is in the step too
  // (c) Ends the step without an update; possible at any point of it, and from any thread.
  absl::Status DiscardGradients();
  // (c) Between steps: the memory of parameters that have values was changed by other means than ShardedParameters and
  // sessions. A step that another session has begun on them is then refused, and to be discarded. Parameters that were
  // never set stay so.
  absl::Status MarkParametersChanged();

  // Finished steps that were not returned before, oldest first; of the last kMetricsRingSize only. Never waits.
  // None once another rank gave up waiting, when they could be of bytes that mean nothing: the next call says so.
  // None while another thread is inside a call: a later call returns them.
  std::vector<StepMetrics> PollMetrics();
  // (c) Between steps, after a step: why its gradient was not finite. Waits, and replays the step's last graph eagerly
  // on the inputs that are still staged, with the parameters as they are now, which a skipped step left as they were
  // (external inputs: as they are now). The answer is the same on all ranks: the first value that is not finite, by
  // command: call, phase, tensor or parameter with its unit, element and rank; or that there is none. Parameters,
  // optimizer state, state tensors, counters and metrics stay as they are; outputs and kept gradients are written
  // again. FailedPrecondition in a step, or if nothing has run. To look at an earlier graph of the step, begin a step
  // again, run its microbatches up to there (with the next random numbers, and state tensors as they are) and discard
  // the gradients: what ran last is looked at, whether its step was ended or discarded.
  absl::StatusOr<std::string> FindNonFinite();
  // Waits for everything launched; the first error so far.
  absl::Status Synchronize();
  // Waits. An output as the last replay left it.
  template <class T>
  absl::StatusOr<std::vector<T>> ReadOutput(int rank, TensorId id) {
    std::vector<T> values;
    REPRISE_RETURN_IF_ERROR(ReadTensor(rank, id, DTypeOf<T>::value, TensorPart::kValue, &values));
    return values;
  }
  // Waits. The gradient, of the last microbatch, of an input named by ModelBuilder::KeepGradient; not divided.
  template <class T>
  absl::StatusOr<std::vector<T>> ReadInputGradient(int rank, TensorId id) {
    std::vector<T> values;
    REPRISE_RETURN_IF_ERROR(ReadTensor(rank, id, DTypeOf<T>::value, TensorPart::kGradient, &values));
    return values;
  }
  // (c) Waits. The whole divided gradient of a trainable parameter, after the step's last RunMicrobatch and before
  // EndStep.
  absl::StatusOr<std::vector<float>> ReadGradient(absl::string_view parameter);

  const Plan& plan() const;
  const SessionReport& report() const;

 private:
  friend class ForwardSession;
  using TensorPart = internal::TensorPart;
  struct State;
  explicit TrainSession(std::unique_ptr<State> state);
  absl::Status CopyInputBytes(int rank, TensorId id, DType dtype, const void* values, int64_t num_elements);
  // Resizes `values` to the tensor and copies into it.
  template <class T>
  absl::Status ReadTensor(int rank, TensorId id, DType dtype, TensorPart part, std::vector<T>* values) {
    REPRISE_ASSIGN_OR_RETURN(const int64_t count, CheckRead(rank, id, dtype, part));
    values->resize(count);
    return ReadBytes(rank, id, part, values->data());
  }
  absl::StatusOr<int64_t> CheckRead(int rank, TensorId id, DType dtype, TensorPart part);
  absl::Status ReadBytes(int rank, TensorId id, TensorPart part, void* values);

  std::unique_ptr<State> state_;
};

}  // namespace reprise

#endif  // REPRISE_GRAPH_TRAIN_SESSION_H_
