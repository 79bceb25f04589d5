// The user's code: one forward and one backward function per call, and the context through which they see memory.
//
//   compute[call] = {
//       [=](ComputeContext& c) { return kernels::Linear(c.stream(), c.input<float>(x), c.parameter<float>(w),
//       c.output<float>(y)); },
//       [=](ComputeContext& c) { return kernels::LinearBackward(...); }};
#ifndef REPRISE_CORE_COMPUTE_H_
#define REPRISE_CORE_COMPUTE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "reprise/core/control_block.h"
#include "reprise/core/dtype.h"
#include "reprise/core/ids.h"
#include "reprise/core/model.h"
#include "reprise/core/schedule.h"
#include "reprise/core/stream.h"

namespace reprise {

// A dense row-major tensor in memory that the stream's kernels can reach. Borrowed: the address is fixed for the life
// of the recording, `shape` for the life of the model. Empty (null, no shape) after a refused request.
template <class T>
struct TensorView {
  T* data = nullptr;
  absl::Span<const int64_t> shape = {};

  int64_t num_elements() const { return data == nullptr ? 0 : NumElements(shape); }
  operator TensorView<const T>() const { return {data, shape}; }  // NOLINT: a view to const is implicit, as for Span
};

// Where a gradient goes. Empty when nobody needs it. kAssign: write every element; kAdd: add to every element.
template <class T>
struct Gradient : TensorView<T> {
  WriteMode mode = WriteMode::kAssign;
  explicit operator bool() const { return this->data != nullptr; }
};

inline constexpr int64_t kScratchAlignment = 256;  // bytes

// What one execution of a compute function may touch. Asking for what the call did not declare, for what this phase
// does not have, or as another dtype, returns an empty view and fails the call: status() then names the request.
// Valid only during the function; not thread-safe.
class ComputeContext {
 public:
  // One thing the call declared, with its address. `id` is a ParameterId or TensorId value by role.
  struct Operand {
    Role role = Role::kInput;
    int32_t id = -1;
    DType dtype = DType::kFloat32;
    WriteMode mode = WriteMode::kAssign;
    void* data = nullptr;
  };
  // Made by recorders and by tests. `model` is borrowed.
  ComputeContext(const Model& model, CallId call, Phase phase, int rank, int world_size, int position, Stream stream,
                 const ControlBlock* control, void* scratch, std::vector<Operand> operands);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  // Launch on it only; every kernels:: function takes it first.
  Stream stream() const { return stream_; }

  // Forward, and backward unless the unit is in forward_only_units.
  template <class T>
  TensorView<const T> parameter(ParameterId id) {
    return Find<const T>(Role::kParameter, id.value());
  }
  // Forward.
  template <class T>
  TensorView<const T> input(TensorId id) {
    return Find<const T>(Role::kInput, id.value());
  }
  template <class T>
  TensorView<T> output(TensorId id) {
    return Find<T>(Role::kOutput, id.value());
  }
  // Forward: saved<T>, of a private tensor (see CallSpec), to be written. Backward: saved<const T>, of anything saved.
  template <class T>
  TensorView<T> saved(TensorId id) {
    return Find<T>(Role::kSaved, id.value());
  }
  template <class T>
  TensorView<T> state(TensorId id) {
    return Find<T>(Role::kState, id.value());
  }
  // Backward: the gradient of an output, to be read.
  template <class T>
  TensorView<const T> output_gradient(TensorId id) {
    return Find<const T>(Role::kOutputGradient, id.value());
  }
  // Backward: where to write; empty if nobody needs the gradient.
  template <class T>
  Gradient<T> input_gradient(TensorId id) {
    return FindGradient<T>(Role::kInputGradient, id.value());
  }
  template <class T>
  Gradient<T> parameter_gradient(ParameterId id) {
    return FindGradient<T>(Role::kParameterGradient, id.value());
  }
  // The dtype in which backward must write this parameter's gradient: the parameter's own, or kAccumulateDType
  // with Reduce::kOncePerStep. kFloat32 if the gradient is not wanted here.
  DType parameter_gradient_dtype(ParameterId id) const;
  // CallSpec::scratch_bytes of working memory, aligned to kScratchAlignment; holds anything. Refused if the call
  // declares none.
  void* scratch();
  // A tensor in that memory, after those that this function asked for before: each takes its bytes, rounded up to a
  // multiple of kScratchAlignment except for the last. Refused if it does not fit. Any shape may be given: a copy of it
  // is kept.
  template <class T>
  TensorView<T> scratch(absl::Span<const int64_t> shape) {
    const Taken taken = TakeScratch(shape, DTypeOf<T>::value);
    return {static_cast<T*>(taken.data), taken.shape};
  }
  // Address, for kernels to read at replay: learning rate, step, random offset and so on. Its counters belong to the
  // replay's first microbatch: add position().
  const ControlBlock* control() const { return control_; }
  // Which microbatch of the replay this is, from 0.
  int position() const { return position_; }

  // OK, or the first refused request.
  const absl::Status& status() const { return status_; }

 private:
  template <class T>
  TensorView<T> Find(Role role, int32_t id) {
    const Operand* operand =
        FindOperand(role, id, DTypeOf<std::remove_const_t<T>>::value, std::is_const_v<T>, /*optional=*/false);
    if (operand == nullptr) return {};
    return {static_cast<T*>(operand->data), ShapeOf(role, id)};
  }
  template <class T>
  Gradient<T> FindGradient(Role role, int32_t id) {
    const Operand* operand = FindOperand(role, id, DTypeOf<T>::value, /*read_only=*/false, /*optional=*/true);
    Gradient<T> gradient;
    if (operand == nullptr) return gradient;
    gradient.data = static_cast<T*>(operand->data);
    gradient.shape = ShapeOf(role, id);
    gradient.mode = operand->mode;
    return gradient;
  }
  // Null after a refusal (status_ is then set), or for an optional operand that was declared but is not wanted.
  const Operand* FindOperand(Role role, int32_t id, DType dtype, bool read_only, bool optional);
  absl::Span<const int64_t> ShapeOf(Role role, int32_t id) const;
  // Memory and lasting shape; both empty after a refusal.
  struct Taken {
    void* data = nullptr;
    absl::Span<const int64_t> shape = {};
  };
  Taken TakeScratch(absl::Span<const int64_t> shape, DType dtype);
  void Refuse(const std::string& what);
  void RefuseScratch(const std::string& what);

  const Model& model_;
  CallId call_;
  Phase phase_;
  int rank_;
  int world_size_;
  int position_;
  Stream stream_;
  const ControlBlock* control_;
  void* scratch_;
  int64_t taken_scratch_ = 0;  // bytes
  std::vector<Operand> operands_;
  absl::Status status_;
};

// Called for warm-up, eager runs, capture and recomputation, never at replay. It enqueues the same work every time on
// the context's stream and does nothing else: while it is called it does not read or write what it is given, allocate,
// synchronise, copy to the host, call NCCL or leave a forked stream unjoined. What it enqueues writes the same bits
// whenever it runs on the same bytes. Forward writes every element of its outputs and private saved tensors; backward
// assigns or adds every gradient that is not empty, as its mode says; neither reads what it has to assign, nor changes
// what it may only read. RunOptions::check_writes finds most that do otherwise, and lists what it cannot. Exceptions
// become Internal. A HostWorld calls it for one rank after another; with ReplayOrder::kThreads on a thread per rank.
using ComputeFunction = std::function<absl::Status(ComputeContext&)>;
struct Compute {
  ComputeFunction forward = {};
  ComputeFunction backward = {};
};
// One entry for each call of the model; backward may be empty where no backward call is scheduled.
using ComputeTable = std::map<CallId, Compute>;

}  // namespace reprise

#endif  // REPRISE_CORE_COMPUTE_H_
