#include "reprise/core/compute.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/model/quoted.h"

namespace reprise {
namespace {

using internal::Quoted;

template <class T>
bool Contains(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// A copy that lives as long as the process, one for all equal shapes: views are used by replays, long after the
// function that asked for them. Fixed-shape training knows few shapes.
absl::Span<const int64_t> Keep(absl::Span<const int64_t> shape) {
  static std::mutex mutex;
  static std::set<Shape>& shapes = *new std::set<Shape>();
  const std::lock_guard<std::mutex> lock(mutex);
  return *shapes.emplace(shape.begin(), shape.end()).first;
}

bool InRange(int32_t id, size_t size) { return id >= 0 && static_cast<size_t>(id) < size; }

bool IsParameterRole(Role role) { return role == Role::kParameter || role == Role::kParameterGradient; }

// Which phases' functions may ask for the role.
bool Exists(Role role, Phase phase) {
  switch (role) {
    case Role::kParameter:
    case Role::kSaved:
    case Role::kState:
      return true;
    case Role::kInput:
    case Role::kOutput:
      return phase == Phase::kForward;
    case Role::kOutputGradient:
    case Role::kInputGradient:
    case Role::kParameterGradient:
      return phase == Phase::kBackward;
    case Role::kShard:
    case Role::kGathered:
    case Role::kScratch:
    case Role::kReduceBuffer:
    case Role::kReceived:
    case Role::kAccumulator:
    case Role::kMaster:
    case Role::kOptimizerState:
    case Role::kStaging:
    case Role::kControl:
    case Role::kStepState:
    case Role::kNormPartials:
    case Role::kNormParts:
    case Role::kMetrics:
      return false;
  }
  return false;
}

// Why the call's declarations do not allow the parameter to be asked for; empty if they do.
std::string ParameterObjection(const Model& model, const CallSpec& call, Role role, Phase phase, ParameterId id) {
  const UnitId unit = model.parameter(id).unit;
  if (Contains(call.units, unit) || Contains(call.parameters, id)) return "";
  if (!Contains(call.forward_only_units, unit)) {
    return absl::StrCat("the call names neither it nor its unit ", Quoted(model.unit(unit).name),
                        "; add one of them to the call");
  }
  if (role == Role::kParameter && phase == Phase::kBackward) {
    return absl::StrCat("its unit ", Quoted(model.unit(unit).name),
                        " is in the call's forward_only_units; move it to units");
  }
  return "";
}

std::string TensorObjection(const Model& model, const CallSpec& call, Role role, Phase phase, TensorId id) {
  const bool input = Contains(call.inputs, id);
  const bool output = Contains(call.outputs, id);
  const auto unless = [](bool declared, const char* list) {
    return declared ? "" : absl::StrCat("it is not in the call's ", list, "; add it there");
  };
  switch (role) {
    case Role::kOutput:
    case Role::kOutputGradient:
      return unless(output, "outputs");
    case Role::kState:
      return unless(Contains(call.state, id), "state");
    case Role::kSaved:
      if (phase == Phase::kForward && (input || output)) {
        return absl::StrCat("in forward only private tensors are saved ones; ask for it as ",
                            input ? "input" : "output");
      }
      return unless(Contains(call.saved, id), "saved");
    case Role::kInputGradient:
      if (input && !IsFloatingPoint(model.tensor(id).spec.dtype)) {
        return absl::StrCat("it is ", Name(model.tensor(id).spec.dtype), ", and integers have no gradient");
      }
      return unless(input, "inputs");
    case Role::kInput:
      return unless(input, "inputs");
    case Role::kParameter:
    case Role::kParameterGradient:
    case Role::kShard:
    case Role::kGathered:
    case Role::kScratch:
    case Role::kReduceBuffer:
    case Role::kReceived:
    case Role::kAccumulator:
    case Role::kMaster:
    case Role::kOptimizerState:
    case Role::kStaging:
    case Role::kControl:
    case Role::kStepState:
    case Role::kNormPartials:
    case Role::kNormParts:
    case Role::kMetrics:
      break;
  }
  return "compute functions cannot ask for that";
}

}  // namespace

ComputeContext::ComputeContext(const Model& model, CallId call, Phase phase, int rank, int world_size, int position,
                               Stream stream, const ControlBlock* control, void* scratch, std::vector<Operand> operands)
    : model_(model),
      call_(call),
      phase_(phase),
      rank_(rank),
      world_size_(world_size),
      position_(position),
      stream_(stream),
      control_(control),
      scratch_(scratch),
      operands_(std::move(operands)) {}

DType ComputeContext::parameter_gradient_dtype(ParameterId id) const {
  for (const Operand& operand : operands_) {
    if (operand.role == Role::kParameterGradient && operand.id == id.value()) return operand.dtype;
  }
  return DType::kFloat32;
}

void* ComputeContext::scratch() {
  if (model_.call(call_).scratch_bytes == 0) {
    RefuseScratch("asked for scratch, but the call declares scratch_bytes 0; set CallSpec::scratch_bytes");
    return nullptr;
  }
  if (scratch_ == nullptr) RefuseScratch("asked for scratch, but no memory is bound to it");
  return scratch_;
}

ComputeContext::Taken ComputeContext::TakeScratch(absl::Span<const int64_t> shape, DType dtype) {
  const int64_t declared = model_.call(call_).scratch_bytes;
  const std::string what = absl::StrCat("asked for scratch of ", Name(dtype), " [", absl::StrJoin(shape, ", "), "]");
  if (std::any_of(shape.begin(), shape.end(), [](int64_t extent) { return extent < 0; })) {
    RefuseScratch(absl::StrCat(what, ", which has a negative extent"));
    return {};
  }
  const bool is_empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  if (is_empty) return {scratch_, Keep(shape)};
  if (scratch() == nullptr) return {};
  const int64_t size = SizeOf(dtype);
  const int64_t room = (declared - taken_scratch_) / size;  // elements
  int64_t elements = 1;
  bool fits = room > 0;
  for (const int64_t extent : shape) {
    fits = fits && elements <= room / extent;
    if (fits) elements *= extent;
  }
  if (!fits) {
    RefuseScratch(absl::StrCat(what, ", but the call declares scratch_bytes ", declared, ", of which ", taken_scratch_,
                               " are taken; raise CallSpec::scratch_bytes"));
    return {};
  }
  void* const data = static_cast<std::byte*>(scratch_) + taken_scratch_;
  const int64_t end = taken_scratch_ + elements * size;
  taken_scratch_ = std::min(declared, (end + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment);
  return {data, Keep(shape)};
}

const ComputeContext::Operand* ComputeContext::FindOperand(Role role, int32_t id, DType dtype, bool read_only,
                                                           bool optional) {
  const bool parameter = IsParameterRole(role);
  const size_t size = parameter ? model_.parameters().size() : model_.tensors().size();
  if (!InRange(id, size)) {
    Refuse(absl::StrCat(Name(role), " of ", parameter ? "parameter" : "tensor", " id ", id, ": the model has ", size,
                        " of them; use an id that the builder returned"));
    return nullptr;
  }
  const auto refuse = [&](const std::string& why) -> const Operand* {
    const std::string& name =
        parameter ? model_.parameter(ParameterId(id)).spec.name : model_.tensor(TensorId(id)).spec.name;
    Refuse(absl::StrCat(Name(role), " of ", Quoted(name), " as ", Name(dtype), ": ", why));
    return nullptr;
  };
  if (!Exists(role, phase_)) {
    const Phase other = phase_ == Phase::kForward ? Phase::kBackward : Phase::kForward;
    return refuse(absl::StrCat(Name(phase_), " has none; ask in ", Name(other),
                               phase_ == Phase::kBackward ? ", or save the tensor and ask for it with saved" : ""));
  }
  const CallSpec& call = model_.call(call_);
  const std::string objection = parameter ? ParameterObjection(model_, call, role, phase_, ParameterId(id))
                                          : TensorObjection(model_, call, role, phase_, TensorId(id));
  if (!objection.empty()) return refuse(objection);
  if (role == Role::kSaved && phase_ == Phase::kBackward && !read_only) {
    return refuse(absl::StrCat("backward may only read it; ask for saved<const T>"));
  }
  const auto found = std::find_if(operands_.begin(), operands_.end(),
                                  [&](const Operand& operand) { return operand.role == role && operand.id == id; });
  if (found == operands_.end()) {
    if (optional) return nullptr;
    return refuse(role == Role::kOutputGradient
                      ? "no gradient flows into it: nothing that the loss depends on reads it; do not ask for it"
                      : "no memory is bound to it");
  }
  if (found->dtype != dtype) {
    return refuse(absl::StrCat("it is ", Name(found->dtype), "; ask for that type"));
  }
  return &*found;
}

absl::Span<const int64_t> ComputeContext::ShapeOf(Role role, int32_t id) const {
  return IsParameterRole(role) ? model_.parameter(ParameterId(id)).spec.shape : model_.tensor(TensorId(id)).spec.shape;
}

void ComputeContext::Refuse(const std::string& what) {
  if (!status_.ok()) return;
  status_ = absl::InvalidArgumentError(absl::StrCat(Name(phase_), " of call ", Quoted(model_.call(call_).name),
                                                    " asked for what it may not touch: ", what));
}

void ComputeContext::RefuseScratch(const std::string& what) {
  if (!status_.ok()) return;
  status_ =
      absl::InvalidArgumentError(absl::StrCat(Name(phase_), " of call ", Quoted(model_.call(call_).name), " ", what));
}

}  // namespace reprise
