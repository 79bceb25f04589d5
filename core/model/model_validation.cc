#include "core/model/model_validation.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/model/quoted.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

template <class... Args>
absl::Status Mistake(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

// Names of one kind of thing, as they are added.
class NameList {
 public:
  explicit NameList(absl::string_view what) : what_(what) {}

  absl::Status Add(const std::string& name) {
    const size_t position = positions_.size();
    if (name.empty()) return Mistake(what_, " ", position, " has no name; give it one");
    if (static_cast<int64_t>(name.size()) > kMaxNameBytes) {
      return Mistake("name of ", what_, " ", position, ", ", Quoted(name), ", is longer than ", kMaxNameBytes,
                     " bytes; shorten it");
    }
    if (const std::string unprintable = FirstUnprintable(name); !unprintable.empty()) {
      return Mistake("name of ", what_, " ", position, ", ", Quoted(name), ", holds ", unprintable,
                     "; use visible characters in UTF-8");
    }
    const auto [entry, added] = positions_.emplace(name, position);
    if (added) return absl::OkStatus();
    return Mistake(what_, "s ", entry->second, " and ", position, " are both named ", Quoted(name), "; names of ",
                   what_, "s must differ");
  }

 private:
  const absl::string_view what_;
  std::map<std::string, size_t> positions_;
};

absl::Status CheckCount(absl::string_view what, size_t count) {
  if (count <= kMaxModelItems) return absl::OkStatus();
  return Mistake("the model has ", count, " ", what, "; give at most ", kMaxModelItems);
}

absl::Status CheckShape(const std::string& what, const Shape& shape, DType dtype) {
  int64_t num_bytes = SizeOf(dtype);
  for (int64_t extent : shape) {
    if (extent < 0) {
      return Mistake(what, " has the negative extent ", extent, " in its shape [", absl::StrJoin(shape, ","), "]");
    }
    // A zero counts as one: no product over some of the extents may overflow either.
    if (extent > 1 && num_bytes > (kMaxModelBytes - 1) / extent) {
      return Mistake(what, " is too large: ", Name(dtype), "[", absl::StrJoin(shape, ","),
                     "] takes 2^62 bytes or more (zero extents counted as one)");
    }
    if (extent > 1) num_bytes *= extent;
  }
  return absl::OkStatus();
}

class Validator {
 public:
  explicit Validator(const Model& model) : model_(model), uses_(model.tensors().size()) {
    units_of_call_.assign(model.units().size(), kNone);
    parameters_of_call_.assign(model.parameters().size(), kNone);
  }

  absl::Status Run() {
    REPRISE_RETURN_IF_ERROR(CheckCount("units", model_.units().size()));
    REPRISE_RETURN_IF_ERROR(CheckCount("parameters", model_.parameters().size()));
    REPRISE_RETURN_IF_ERROR(CheckCount("tensors", model_.tensors().size()));
    REPRISE_RETURN_IF_ERROR(CheckCount("calls", model_.calls().size()));
    REPRISE_RETURN_IF_ERROR(CheckUnits());
    REPRISE_RETURN_IF_ERROR(CheckParameters());
    REPRISE_RETURN_IF_ERROR(CheckTensors());
    for (size_t c = 0; c < model_.calls().size(); ++c) NoteWriters(model_.calls()[c], static_cast<int>(c));
    for (size_t c = 0; c < model_.calls().size(); ++c) {
      REPRISE_RETURN_IF_ERROR(CheckCall(model_.calls()[c], static_cast<int>(c)));
    }
    REPRISE_RETURN_IF_ERROR(CheckAllTensorsUsed());
    return CheckLoss();
  }

 private:
  static constexpr int kNone = -1;
  // Calls that use a tensor, by position. input, output, saved and state are of the call being checked.
  struct TensorUses {
    int writer = kNone, owner = kNone;  // the first call that writes it, that saves it as a private tensor
    int input = kNone, output = kNone, saved = kNone, state = kNone;
  };

  template <class Id, class T>
  static bool Known(Id id, absl::Span<const T> items) {
    return id.valid() && static_cast<size_t>(id.value()) < items.size();
  }
  std::string CallText(int call) const { return absl::StrCat("call ", Quoted(model_.calls()[call].name)); }
  std::string UnitText(UnitId id) const { return absl::StrCat("unit ", Quoted(model_.unit(id).name)); }
  std::string ParameterText(ParameterId id) const {
    return absl::StrCat("parameter ", Quoted(model_.parameter(id).spec.name));
  }
  std::string TensorText(TensorId id) const { return absl::StrCat("tensor ", Quoted(model_.tensor(id).spec.name)); }

  absl::Status CheckUnits() {
    NameList names("unit");
    for (const Unit& unit : model_.units()) REPRISE_RETURN_IF_ERROR(names.Add(unit.name));
    return absl::OkStatus();
  }

  absl::Status CheckParameters() {
    NameList names("parameter");
    for (const Parameter& parameter : model_.parameters()) {
      const ParameterSpec& spec = parameter.spec;
      REPRISE_RETURN_IF_ERROR(names.Add(spec.name));
      const std::string text = absl::StrCat("parameter ", Quoted(spec.name));
      if (!IsFloatingPoint(spec.dtype)) {
        return Mistake(text, " is ", Name(spec.dtype), "; parameters must be floating-point: f32 or bf16");
      }
      if (spec.reduce_dtype && !IsFloatingPoint(*spec.reduce_dtype)) {
        return Mistake(text, " has the reduce dtype ", Name(*spec.reduce_dtype),
                       "; it must be floating-point: f32 or bf16");
      }
      REPRISE_RETURN_IF_ERROR(CheckShape(text, spec.shape, spec.dtype));
    }
    return absl::OkStatus();
  }

  absl::Status CheckTensors() {
    NameList names("tensor");
    for (const Tensor& tensor : model_.tensors()) {
      REPRISE_RETURN_IF_ERROR(names.Add(tensor.spec.name));
      const std::string text = absl::StrCat("tensor ", Quoted(tensor.spec.name));
      if (SizeOf(tensor.spec.dtype) == 0) {
        return Mistake(text, " has dtype ", static_cast<int>(tensor.spec.dtype),
                       ", which does not exist; use f32, bf16, i32 or u8");
      }
      REPRISE_RETURN_IF_ERROR(CheckShape(text, tensor.spec.shape, tensor.spec.dtype));
      REPRISE_RETURN_IF_ERROR(AddBytes(text, NumElements(tensor.spec.shape) * SizeOf(tensor.spec.dtype)));
      if (tensor.spec.external && tensor.kind == TensorKind::kActivation) {
        return Mistake(text,
                       " is an external activation; only inputs, outputs and state can be external: use "
                       "AddOutput, or leave it to the memory plan");
      }
      if (!tensor.keep_gradient) continue;
      if (tensor.kind != TensorKind::kInput) {
        return Mistake("KeepGradient of ", text, ", which is not an input; only gradients of inputs can be kept");
      }
      if (!IsFloatingPoint(tensor.spec.dtype)) {
        return Mistake("KeepGradient of ", text, ", which is ", Name(tensor.spec.dtype),
                       "; only floating-point inputs have gradients");
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddBytes(const std::string& what, int64_t num_bytes) {
    if (num_bytes >= kMaxModelBytes - total_bytes_) {
      return Mistake(what, " needs ", num_bytes,
                     " bytes, which brings the model's tensors and scratch to 2^62 bytes "
                     "or more; check its size");
    }
    total_bytes_ += num_bytes;
    return absl::OkStatus();
  }

  // A tensor that is read too early is reported with the call that writes it later.
  void NoteWriters(const CallSpec& spec, int call) {
    for (TensorId id : spec.outputs) {
      if (Known(id, model_.tensors()) && Uses(id).writer == kNone) Uses(id).writer = call;
    }
  }

  TensorUses& Uses(TensorId id) { return uses_[id.value()]; }

  absl::Status CheckCall(const CallSpec& spec, int call) {
    REPRISE_RETURN_IF_ERROR(call_names_.Add(spec.name));
    REPRISE_RETURN_IF_ERROR(CheckCallParameters(spec, call));
    for (TensorId id : spec.inputs) REPRISE_RETURN_IF_ERROR(CheckInput(id, call));
    for (TensorId id : spec.outputs) REPRISE_RETURN_IF_ERROR(CheckOutput(id, call));
    for (TensorId id : spec.saved) REPRISE_RETURN_IF_ERROR(CheckSaved(id, call));
    for (TensorId id : spec.state) REPRISE_RETURN_IF_ERROR(CheckState(id, call));
    if (spec.scratch_bytes < 0) {
      return Mistake(CallText(call), " asks for ", spec.scratch_bytes, " bytes of scratch; give 0 or more");
    }
    return AddBytes(absl::StrCat("scratch of ", CallText(call)), spec.scratch_bytes);
  }

  absl::Status CheckCallParameters(const CallSpec& spec, int call) {
    for (const std::vector<UnitId>* units : {&spec.units, &spec.forward_only_units}) {
      for (UnitId id : *units) {
        if (!Known(id, model_.units())) {
          return Mistake(CallText(call), " names unit id ", id.value(), ", and the model has ", model_.units().size(),
                         " units; use an id that AddUnit returned");
        }
        if (std::exchange(units_of_call_[id.value()], call) == call) {
          return Mistake(CallText(call), " names ", UnitText(id),
                         " twice, in units and forward_only_units together; name it once");
        }
      }
    }
    for (ParameterId id : spec.parameters) {
      if (!Known(id, model_.parameters())) {
        return Mistake(CallText(call), " names parameter id ", id.value(), ", and the model has ",
                       model_.parameters().size(), " parameters; use an id that AddParameter returned");
      }
      if (std::exchange(parameters_of_call_[id.value()], call) == call) {
        return Mistake(CallText(call), " names ", ParameterText(id), " twice; name it once");
      }
      const UnitId unit = model_.parameter(id).unit;
      if (units_of_call_[unit.value()] == call) {
        return Mistake(CallText(call), " names ", ParameterText(id), " and all of its ", UnitText(unit),
                       "; name one of them");
      }
    }
    return absl::OkStatus();
  }

  // Checks the id and that it stands once in the list whose marks are `mark`.
  absl::Status NoteTensor(TensorId id, int call, int TensorUses::*mark, absl::string_view list) {
    if (!Known(id, model_.tensors())) {
      return Mistake(CallText(call), " names tensor id ", id.value(), " in ", list, ", and the model has ",
                     model_.tensors().size(), " tensors; use an id that the builder returned");
    }
    if (std::exchange(Uses(id).*mark, call) == call) {
      return Mistake(CallText(call), " names ", TensorText(id), " twice in ", list, "; name it once");
    }
    return absl::OkStatus();
  }

  absl::Status CheckInput(TensorId id, int call) {
    REPRISE_RETURN_IF_ERROR(NoteTensor(id, call, &TensorUses::input, "inputs"));
    switch (model_.tensor(id).kind) {
      case TensorKind::kInput:
        return absl::OkStatus();
      case TensorKind::kState:
        return Mistake(CallText(call), " names state ", TensorText(id), " in inputs; name it in state");
      case TensorKind::kActivation:
      case TensorKind::kOutput:
        break;
    }
    const int writer = Uses(id).writer;
    if (writer == kNone) {
      return Mistake(CallText(call), " reads ", TensorText(id),
                     ", which no call writes; name it in the outputs of an "
                     "earlier call, or add it with AddInput");
    }
    if (writer == call) {
      return Mistake(TensorText(id), " is both input and output of ", CallText(call), "; write another tensor");
    }
    if (writer > call) {
      return Mistake(CallText(call), " reads ", TensorText(id), " before ", CallText(writer),
                     " writes it; add the calls in forward order");
    }
    return absl::OkStatus();
  }

  absl::Status CheckOutput(TensorId id, int call) {
    REPRISE_RETURN_IF_ERROR(NoteTensor(id, call, &TensorUses::output, "outputs"));
    const TensorUses& uses = Uses(id);
    switch (model_.tensor(id).kind) {
      case TensorKind::kInput:
        return Mistake(CallText(call), " writes input ", TensorText(id), "; write an activation or an output");
      case TensorKind::kState:
        return Mistake(CallText(call), " names state ", TensorText(id), " in outputs; name it in state");
      case TensorKind::kActivation:
      case TensorKind::kOutput:
        break;
    }
    if (uses.writer != call) {
      return Mistake(TensorText(id), " is written twice, by ", CallText(uses.writer), " and by ", CallText(call),
                     "; write another tensor");
    }
    return absl::OkStatus();
  }

  absl::Status CheckSaved(TensorId id, int call) {
    REPRISE_RETURN_IF_ERROR(NoteTensor(id, call, &TensorUses::saved, "saved"));
    TensorUses& uses = Uses(id);
    if (uses.input == call || uses.output == call) return absl::OkStatus();
    if (model_.tensor(id).kind != TensorKind::kActivation || uses.writer != kNone) {
      return Mistake(CallText(call), " saves ", TensorText(id),
                     ", which it neither reads nor writes; name it in the "
                     "inputs, or save an activation that no other call names");
    }
    if (uses.owner != kNone) {
      return Mistake(TensorText(id), " is saved as a private tensor by ", CallText(uses.owner), " and by ",
                     CallText(call), "; give each its own");
    }
    uses.owner = call;
    return absl::OkStatus();
  }

  absl::Status CheckState(TensorId id, int call) {
    REPRISE_RETURN_IF_ERROR(NoteTensor(id, call, &TensorUses::state, "state"));
    if (model_.tensor(id).kind == TensorKind::kState) return absl::OkStatus();
    return Mistake(CallText(call), " names ", TensorText(id),
                   " in state, and it is not a state tensor; add it with "
                   "AddState, or name it in inputs or outputs");
  }

  absl::Status CheckAllTensorsUsed() {
    for (size_t t = 0; t < uses_.size(); ++t) {
      const std::string text = TensorText(TensorId(static_cast<int64_t>(t)));
      switch (model_.tensors()[t].kind) {
        case TensorKind::kInput:
          if (uses_[t].input == kNone) return Mistake("no call reads input ", text, "; name it in one, or remove it");
          break;
        case TensorKind::kState:
          if (uses_[t].state == kNone) return Mistake("no call uses state ", text, "; name it in one, or remove it");
          break;
        case TensorKind::kActivation:
          if (uses_[t].writer == kNone && uses_[t].owner == kNone) {
            return Mistake("no call writes or saves ", text, "; name it in one, or remove it");
          }
          break;
        case TensorKind::kOutput:
          if (uses_[t].writer == kNone) {
            return Mistake("no call writes output ", text, "; name it in the outputs of one, or remove it");
          }
          break;
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckLoss() const {
    if (!model_.loss().valid()) return absl::OkStatus();
    const Tensor& loss = model_.tensor(model_.loss());
    const bool fits = loss.kind == TensorKind::kOutput && loss.spec.dtype == DType::kFloat32 && loss.spec.shape.empty();
    if (fits) return absl::OkStatus();
    return Mistake("the loss ", TensorText(model_.loss()), " is ", Name(loss.spec.dtype), "[",
                   absl::StrJoin(loss.spec.shape, ","), "]", loss.kind == TensorKind::kOutput ? "" : " and no output",
                   "; the loss must be a float32 scalar (shape {}) added with AddOutput");
  }

  const Model& model_;
  std::vector<TensorUses> uses_;                         // by TensorId
  std::vector<int> units_of_call_, parameters_of_call_;  // the last call that names them, by id
  NameList call_names_{"call"};
  int64_t total_bytes_ = 0;
};

}  // namespace

absl::Status ValidateModel(const Model& model) { return Validator(model).Run(); }

}  // namespace reprise::internal
