// Forward-only replay, for evaluation and for inference runtimes.
//
// A session holds variants of one computation (say, one per batch size) on the same parameters. They share one arena,
// so outputs that are not external or persistent state are valid until the next Replay of that variant. `variant` is an
// index into the variants given to Create: InvalidArgument if there is none. Errors: as for TrainSession.
//
// Threads: as for the World, and CopyInput, Replay and ReadOutput of one result belong to one thread. Inputs are of the
// thread that copied them: those of another are forgotten when it copies one, and its Replay is refused. A thread that
// replayed a variant reads no output once another thread has replayed it since; a thread that never did reads what is
// there. State tensors are the session's: threads that take turns continue one another's sequence.
#ifndef REPRISE_GRAPH_FORWARD_SESSION_H_
#define REPRISE_GRAPH_FORWARD_SESSION_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/core/compute.h"
#include "reprise/core/plan.h"
#include "reprise/core/status_macros.h"
#include "reprise/graph/sharded_parameters.h"
#include "reprise/graph/train_session.h"

namespace reprise {

struct ForwardVariant {
  std::string name = {};  // unique in the session
  Model model;            // its units and parameters are those of the ShardedParameters
  ComputeTable compute = {};
};

// Ranks that replay different variants, or one of them once more, are found by the next collective call that is not a
// launch, as by World::Sum or BeginStep. Until then nothing is refused, and their outputs may mean nothing: Replay and
// ReadOutput say nothing to other ranks, which would cost each evaluation a message to all. Ranks that replay and read
// alone should make such a call before they use what they read, one for many replays.
class ForwardSession {
 public:
  // (c) With `share_arena`, takes no transient memory but uses the train session's: ResourceExhausted, with the
  // arena that is too small, the variant, both sizes and what helps, if one is; Replay is then allowed only between
  // that session's steps, and after its failure.
  static absl::StatusOr<std::unique_ptr<ForwardSession>> Create(std::shared_ptr<ShardedParameters> parameters,
                                                                std::vector<ForwardVariant> variants,
                                                                RunOptions options,
                                                                TrainSession* share_arena = nullptr);
  ~ForwardSession();

  // An input of the next Replay of `variant`, as in TrainSession.
  template <class Values>
  absl::Status CopyInput(int rank, int variant, TensorId id, const Values& values) {
    const auto span = absl::MakeConstSpan(values);
    return CopyInputBytes(rank, variant, id, DTypeOf<typename decltype(span)::value_type>::value, span.data(),
                          static_cast<int64_t>(span.size()));
  }
  // (c) One launch; refused while an input is missing or a parameter was never set.
  absl::Status Replay(int variant);
  template <class T>
  absl::StatusOr<std::vector<T>> ReadOutput(int rank, int variant, TensorId id) {  // waits
    REPRISE_ASSIGN_OR_RETURN(const int64_t count, CheckRead(rank, variant, id, DTypeOf<T>::value));
    std::vector<T> values(count);
    REPRISE_RETURN_IF_ERROR(ReadBytes(rank, variant, id, values.data()));
    return values;
  }
  // Where an output or state tensor lies on a local rank, for use by later work in the same order of launches.
  absl::StatusOr<void*> Address(int rank, int variant, TensorId id) const;
  // Zeroes a variant's state tensors (an empty KV cache).
  absl::Status ClearState(int variant);
  absl::Status Synchronize();
  absl::StatusOr<const Plan*> plan(int variant) const;

 private:
  struct State;
  explicit ForwardSession(std::unique_ptr<State> state);
  absl::Status CopyInputBytes(int rank, int variant, TensorId id, DType dtype, const void* values,
                              int64_t num_elements);
  absl::StatusOr<int64_t> CheckRead(int rank, int variant, TensorId id, DType dtype);
  absl::Status ReadBytes(int rank, int variant, TensorId id, void* values);

  std::unique_ptr<State> state_;
};

}  // namespace reprise

#endif  // REPRISE_GRAPH_FORWARD_SESSION_H_
