// Inputs and outputs of a SessionCore.
#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/model/quoted.h"
#include "graph/session_core.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

absl::Status CheckId(absl::string_view what, const Model& model, TensorId id) {
  if (id.valid() && id.value() < static_cast<int64_t>(model.tensors().size())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, ": no tensor ", id.value(), " among the model's ",
                                                 model.tensors().size(),
                                                 "; use the id that ModelBuilder returned for this model"));
}

// A tensor of the model, of that dtype.
absl::Status CheckTensor(absl::string_view what, const Model& model, TensorId id, DType dtype) {
  REPRISE_RETURN_IF_ERROR(CheckId(what, model, id));
  const TensorSpec& spec = model.tensor(id).spec;
  if (spec.dtype == dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, ": tensor ", Quoted(spec.name), " is ",
                                                 std::string(Name(spec.dtype)), ", not ", std::string(Name(dtype)),
                                                 "; use its own dtype"));
}

bool HasLastingValue(const Tensor& tensor) {
  return tensor.kind == TensorKind::kOutput || tensor.kind == TensorKind::kState;
}
absl::Status NotLasting(absl::string_view what, const Tensor& tensor) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": tensor ", Quoted(tensor.spec.name),
                                                 " is neither output nor state; declare it with AddOutput to read it"));
}

// Does the user stage it?
bool IsStaged(const Tensor& tensor) { return tensor.kind == TensorKind::kInput && !tensor.spec.external; }

}  // namespace

absl::StatusOr<int> SessionCore::LocalIndex(absl::string_view what, int rank) const {
  const absl::Span<const int> ranks = world().local_ranks();
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  if (found != ranks.end()) return static_cast<int>(found - ranks.begin());
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": rank ", rank, " is not driven by this process; its ranks are ", absl::StrJoin(ranks, ", ")));
}

absl::Status SessionCore::CopyInput(int rank, TensorId id, DType dtype, const void* values, int64_t num_elements) {
  REPRISE_ASSIGN_OR_RETURN(const int local, LocalIndex("CopyInput", rank));
  REPRISE_RETURN_IF_ERROR(CheckTensor("CopyInput", plan().model, id, dtype));
  const Tensor& tensor = plan().model.tensor(id);
  if (!IsStaged(tensor)) {
    return absl::InvalidArgumentError(absl::StrCat("CopyInput: tensor ", Quoted(tensor.spec.name),
                                                   tensor.kind == TensorKind::kInput
                                                       ? " is external; write to its own memory"
                                                       : " is not an input; copy only what AddInput declared"));
  }
  if (num_elements != NumElements(tensor.spec.shape)) {
    return absl::InvalidArgumentError(absl::StrCat("CopyInput: ", num_elements, " values for input ",
                                                   Quoted(tensor.spec.name), ", which has ",
                                                   NumElements(tensor.spec.shape), " elements; give all of them"));
  }
  const int64_t num_bytes = num_elements * SizeOf(dtype);
  if (num_bytes > 0 && values == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("CopyInput: the values for input ", Quoted(tensor.spec.name), " are at a null address"));
  }
  if (copier_ != std::this_thread::get_id()) ForgetInputs();
  copier_ = std::this_thread::get_id();
  if (num_bytes > 0) {
    const int64_t slots = int64_t{2} * plan().options.microbatches_per_graph.value_or(1);
    std::byte* slot =
        address(local, plan().tensor_buffers[id.value()].staging) + staged_ % slots * SlotStride(num_bytes);
    REPRISE_RETURN_IF_ERROR(Keep(world().StageToRank(local, slot, values, num_bytes)));
  }
  is_copied_[local][id.value()] = true;
  return absl::OkStatus();
}

absl::Status SessionCore::CheckInputs(absl::string_view what) const {
  for (int local = 0; local < num_local(); ++local) {
    for (size_t t = 0; t < plan().model.tensors().size(); ++t) {
      const Tensor& tensor = plan().model.tensors()[t];
      if ((is_copied_[local][t] && copier_ == std::this_thread::get_id()) || !IsStaged(tensor)) continue;
      return absl::FailedPreconditionError(
          absl::StrCat(what, " lacks input ", Quoted(tensor.spec.name), " of rank ", world().local_ranks()[local],
                       is_copied_[local][t] ? ", which another thread copied; call CopyInput and this in one thread"
                                            : "; call CopyInput for it first"));
    }
  }
  return absl::OkStatus();
}

void SessionCore::ForgetInputs() {
  for (std::vector<bool>& copied : is_copied_) copied.assign(copied.size(), false);
}

void SessionCore::NextInputs() {
  ++staged_;
  ForgetInputs();
}

void SessionCore::DropInputs() {
  NextInputs();
  staged_ = launched_;
}

absl::StatusOr<int64_t> SessionCore::CheckRead(absl::string_view what, int rank, TensorId id, DType dtype,
                                               TensorPart part) const {
  REPRISE_RETURN_IF_ERROR(CheckReader(what));
  REPRISE_RETURN_IF_ERROR(LocalIndex(what, rank).status());
  REPRISE_RETURN_IF_ERROR(CheckTensor(what, plan().model, id, dtype));
  const Tensor& tensor = plan().model.tensor(id);
  switch (part) {
    case TensorPart::kValue:
      if (!HasLastingValue(tensor)) return NotLasting(what, tensor);
      break;
    case TensorPart::kGradient:
      if (plan().tensor_buffers[id.value()].kept_gradient.valid()) break;
      return absl::InvalidArgumentError(absl::StrCat(what, ": the gradient of tensor ", Quoted(tensor.spec.name),
                                                     " is not kept; name it by ModelBuilder::KeepGradient to read it"));
  }
  if (launched_ == 0 && tensor.kind != TensorKind::kState) {
    const int per_graph = plan().options.microbatches_per_graph.value_or(1);
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": tensor ", Quoted(tensor.spec.name), " has no value yet; call ", ReplayingCall(),
                     per_graph > 1 ? absl::StrCat(" for the ", per_graph, " microbatches of a graph") : "", " first"));
  }
  return NumElements(tensor.spec.shape);
}

absl::StatusOr<void*> SessionCore::Address(int rank, TensorId id) const {
  REPRISE_ASSIGN_OR_RETURN(const int local, LocalIndex("Address", rank));
  REPRISE_RETURN_IF_ERROR(CheckId("Address", plan().model, id));
  if (!HasLastingValue(plan().model.tensor(id))) return NotLasting("Address", plan().model.tensor(id));
  return address(local, plan().tensor_buffers[id.value()].value);
}

absl::Status SessionCore::ReadTensor(int rank, TensorId id, TensorPart part, void* values) {
  REPRISE_RETURN_IF_ERROR(CheckReader("reading a tensor"));
  REPRISE_ASSIGN_OR_RETURN(const int local, LocalIndex("reading a tensor", rank));
  const TensorBuffers& buffers = plan().tensor_buffers[id.value()];
  const BufferId buffer = part == TensorPart::kValue ? buffers.value : buffers.kept_gradient;
  const int64_t num_bytes = plan().buffer(buffer).num_bytes;
  if (num_bytes == 0) return absl::OkStatus();
  return Keep(world().CopyToHost(local, values, address(local, buffer), num_bytes));
}

}  // namespace reprise::internal
