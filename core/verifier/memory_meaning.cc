#include "core/verifier/memory_meaning.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/plan/persistent_buffers.h"
#include "reprise/core/control_block.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// ---- which buffers there are ----

class Places {
 public:
  explicit Places(const ModelMeaning& model)
      : model_(model), plan_(model.plan()), taken_(plan_.buffers.size(), false) {}

  absl::Status Check() {
    if (plan_.axes.size() != 1 || plan_.axes[0].size != plan_.world_size()) {
      return absl::InternalError(absl::StrCat("the plan's ", plan_.axes.size(), " axes are not one of ",
                                              plan_.world_size(), " ranks, over which its layout shards"));
    }
    if (model_.trains() && !plan_.model.loss().valid()) {
      return absl::InternalError("the plan has a step, but its model has no loss");
    }
    REPRISE_RETURN_IF_ERROR(CheckParameters());
    REPRISE_RETURN_IF_ERROR(Take(plan_.control, Storage::kSession, sizeof(ControlBlock), "the control block"));
    REPRISE_RETURN_IF_ERROR(model_.trains() ? CheckTraining() : CheckForwardOnly());
    REPRISE_RETURN_IF_ERROR(CheckTensors());
    return CheckNoOthers();
  }

 private:
  // It exists, nothing else has it, and it is as it must be.
  template <class... Words>
  absl::Status Take(BufferId id, Storage storage, int64_t num_bytes, const Words&... words) {
    const bool exists = id.valid() && id.value() < static_cast<int64_t>(plan_.buffers.size());
    if (!exists) {
      return absl::InternalError(
          absl::StrCat("buffer ", id.value(), ", which is to hold ", words..., ", does not exist"));
    }
    const Buffer& buffer = plan_.buffer(id);
    if (taken_[id.value()]) {
      return absl::InternalError(absl::StrCat(buffer.name, " is to hold ", words..., ", and something else too"));
    }
    taken_[id.value()] = true;
    if (buffer.storage == storage && buffer.num_bytes == num_bytes) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(buffer.name, " is to hold ", words..., " of ", num_bytes,
                                            " bytes in storage ", Name(storage), ", but has ", buffer.num_bytes,
                                            " in storage ", Name(buffer.storage)));
  }

  // The same of what a plan need not have; what it need not have has no buffer.
  template <class... Words>
  absl::Status TakeIf(bool needed, BufferId id, Storage storage, int64_t num_bytes, const Words&... words) {
    if (needed) return Take(id, storage, num_bytes, words...);
    if (!id.valid()) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("buffer ", id.value(), " is to hold ", words..., ", but outlives no graph"));
  }

  absl::Status CheckLength(size_t size, size_t needed, absl::string_view what) const {
    if (size == needed) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("the plan has ", size, " ", what, ", but its model has ", needed));
  }

  // Where those who hold the parameters have put them.
  absl::Status CheckParameters() {
    const ParameterBuffers needed = PlanParameterBuffers(plan_.model, plan_.layout, plan_.options.master_dtype);
    for (size_t u = 0; u < needed.units.size(); ++u) {
      const UnitBuffers &unit = plan_.unit_buffers[u], &should = needed.units[u];
      const absl::string_view name = plan_.model.units()[u].name;
      REPRISE_RETURN_IF_ERROR(CheckLength(unit.weights.size(), should.weights.size(), "shards of a unit"));
      REPRISE_RETURN_IF_ERROR(CheckLength(unit.masters.size(), should.masters.size(), "master shards of a unit"));
      for (size_t g = 0; g < should.weights.size(); ++g) {
        REPRISE_RETURN_IF_ERROR(
            TakeAt(unit.weights[g], needed.buffers[should.weights[g].value()], "the shard of group ", g, " of ", name));
        if (should.masters[g] != should.weights[g]) {
          REPRISE_RETURN_IF_ERROR(TakeAt(unit.masters[g], needed.buffers[should.masters[g].value()],
                                         "the masters of group ", g, " of ", name));
        } else if (unit.masters[g] != unit.weights[g]) {
          return absl::InternalError(
              absl::StrCat("the masters of group ", g, " of ", name, ", which are its shard, have another buffer"));
        }
      }
    }
    return absl::OkStatus();
  }

  template <class... Words>
  absl::Status TakeAt(BufferId id, const Buffer& needed, const Words&... words) {
    REPRISE_RETURN_IF_ERROR(Take(id, needed.storage, needed.num_bytes, words...));
    if (needed.num_bytes == 0 || plan_.buffer(id).offset == needed.offset) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat(words..., " is at byte ", plan_.buffer(id).offset, " of its storage, not ", needed.offset));
  }

  absl::Status CheckTraining() {
    for (size_t u = 0; u < plan_.unit_buffers.size(); ++u) {
      const UnitId unit(static_cast<int64_t>(u));
      const UnitBuffers& buffers = plan_.unit_buffers[u];
      const absl::string_view name = plan_.model.units()[u].name;
      const std::vector<FlatGroup>& groups = plan_.layout.units[u].groups;
      REPRISE_RETURN_IF_ERROR(CheckLength(buffers.accumulators.size(), groups.size(), "accumulators of a unit"));
      REPRISE_RETURN_IF_ERROR(
          CheckLength(buffers.optimizer_states.size(), groups.size(), "optimizer states of a unit"));
      REPRISE_RETURN_IF_ERROR(CheckLength(buffers.norm_partials.size(), groups.size(), "partial norms of a unit"));
      bool trains = false, in_place = true;
      for (size_t g = 0; g < groups.size(); ++g) {
        const int group = static_cast<int>(g);
        if (buffers.norm_partials[g] != model_.norm_offset(unit, group)) {
          return absl::InternalError(absl::StrCat("the partial norms of group ", g, " of ", name, " are at byte ",
                                                  buffers.norm_partials[g], ", not ", model_.norm_offset(unit, group)));
        }
        const size_t states = groups[g].trainable ? static_cast<size_t>(plan_.options.optimizer_states) : 0;
        REPRISE_RETURN_IF_ERROR(CheckLength(buffers.optimizer_states[g].size(), states, "optimizer states of a group"));
        const int64_t elements = groups[g].shard_elements;
        REPRISE_RETURN_IF_ERROR(TakeIf(groups[g].trainable, buffers.accumulators[g], Storage::kSession,
                                       elements * SizeOf(kAccumulateDType), "the accumulator of group ", g, " of ",
                                       name));
        for (const BufferId state : buffers.optimizer_states[g]) {
          REPRISE_RETURN_IF_ERROR(Take(state, Storage::kSession, elements * SizeOf(DType::kFloat32),
                                       "an optimizer state of group ", g, " of ", name));
        }
        trains = trains || groups[g].trainable;
        in_place = in_place && (!groups[g].trainable || plan_.reduce_dtype(groups[g]) == kAccumulateDType);
      }
      if (!trains || !model_.once()) continue;
      REPRISE_RETURN_IF_ERROR(Take(buffers.unsharded_gradient, in_place ? Storage::kGradients : Storage::kSession,
                                   model_.unsharded_offset(unit, model_.num_groups(unit)), "the unsharded gradient of ",
                                   name));
    }
    const int64_t parts = int64_t{1} + plan_.world_size();
    REPRISE_RETURN_IF_ERROR(Take(plan_.step_state, Storage::kSession, sizeof(StepState), "the step state"));
    REPRISE_RETURN_IF_ERROR(Take(plan_.norm_partials, Storage::kSession, model_.norm_bytes(), "the partial norms"));
    REPRISE_RETURN_IF_ERROR(
        Take(plan_.norm_parts, Storage::kSession, parts * static_cast<int64_t>(sizeof(NormPart)), "the norm's parts"));
    return Take(plan_.metrics, Storage::kHostVisible, sizeof(MetricsRing), "the metrics");
  }

  absl::Status CheckForwardOnly() {
    std::vector<BufferId> ids = {plan_.step_state, plan_.norm_partials, plan_.norm_parts, plan_.metrics};
    for (const UnitBuffers& buffers : plan_.unit_buffers) {
      ids.insert(ids.end(), buffers.accumulators.begin(), buffers.accumulators.end());
      for (const auto& states : buffers.optimizer_states) ids.insert(ids.end(), states.begin(), states.end());
    }
    for (const BufferId id : ids) {
      if (id.valid())
        return absl::InternalError(absl::StrCat("buffer ", id.value(), " is of training, in a forward plan"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckTensors() {
    REPRISE_RETURN_IF_ERROR(
        CheckLength(plan_.tensor_buffers.size(), plan_.model.tensors().size(), "buffers of tensors"));
    for (size_t t = 0; t < plan_.tensor_buffers.size(); ++t) {
      const Tensor& tensor = plan_.model.tensors()[t];
      const TensorBuffers& buffers = plan_.tensor_buffers[t];
      const std::string& name = tensor.spec.name;
      const int64_t bytes = model_.bytes_of(TensorId(static_cast<int64_t>(t)));
      const bool external = tensor.spec.external;
      const int64_t slots = int64_t{2} * model_.microbatches();
      if (AlignUp(bytes) > std::numeric_limits<int64_t>::max() / slots) {
        return absl::InternalError(absl::StrCat("what is staged of ", name, " in ", slots, " slots of ", bytes,
                                                " bytes has no size that fits an int64"));
      }
      REPRISE_RETURN_IF_ERROR(TakeIf(tensor.kind == TensorKind::kInput && !external, buffers.staging, Storage::kSession,
                                     slots * AlignUp(bytes), "what is staged of ", name));
      REPRISE_RETURN_IF_ERROR(
          TakeIf(external || tensor.kind == TensorKind::kOutput || tensor.kind == TensorKind::kState, buffers.value,
                 external ? Storage::kExternal : Storage::kSession, bytes, "tensor ", name));
      REPRISE_RETURN_IF_ERROR(TakeIf(tensor.keep_gradient && model_.trains(), buffers.kept_gradient, Storage::kSession,
                                     bytes, "the kept gradient of ", name));
    }
    return absl::OkStatus();
  }

  // What outlives a graph is one of these, and no storage is larger than what is in it.
  absl::Status CheckNoOthers() const {
    std::array<int64_t, kNumStorages> ends = {};
    for (size_t b = 0; b < taken_.size(); ++b) {
      const Buffer& buffer = plan_.buffers[b];
      if (!taken_[b] && !IsTransient(buffer.storage)) {
        return absl::InternalError(absl::StrCat(buffer.name, " is in storage ", Name(buffer.storage),
                                                ", but holds nothing that outlives a graph"));
      }
      int64_t& end = ends[static_cast<int>(buffer.storage)];
      if (buffer.storage != Storage::kExternal) end = std::max(end, buffer.offset + buffer.num_bytes);
    }
    for (int s = 0; s < kNumStorages; ++s) {
      if (plan_.memory.num_bytes[s] < ends[s] + kBufferAlignment) continue;
      return absl::InternalError(absl::StrCat("storage ", Name(static_cast<Storage>(s)), " has ",
                                              plan_.memory.num_bytes[s], " bytes, but its buffers end at ", ends[s]));
    }
    return absl::OkStatus();
  }

  const ModelMeaning& model_;
  const Plan& plan_;
  std::vector<bool> taken_;  // by BufferId
};

// ---- what is in them ----

class Memory {
 public:
  Memory(const ModelMeaning& model, const Moment& moment, const std::function<void(const Place&)>& visit)
      : model_(model), plan_(model.plan()), moment_(moment), visit_(visit) {}

  void Visit() const {
    std::vector<bool> outstanding(plan_.unit_buffers.size(), false);
    for (const OutstandingReduction& held : moment_.held->outstanding) outstanding[held.unit.value()] = true;
    for (size_t u = 0; u < plan_.unit_buffers.size(); ++u) {
      VisitUnit(UnitId(static_cast<int64_t>(u)), moment_.time - (outstanding[u] ? 1 : 0));
    }
    for (size_t t = 0; t < plan_.tensor_buffers.size(); ++t) VisitTensor(TensorId(static_cast<int64_t>(t)));
    Whole(plan_.control, {.kind = ValueKind::kControl, .time = moment_.control});
    if (model_.trains()) {
      Whole(plan_.step_state, {.kind = ValueKind::kStepState, .time = moment_.losses});
      Whole(plan_.metrics, {.kind = ValueKind::kMetrics, .time = moment_.version});
    }
    VisitHeld();
  }

 private:
  void Bytes(BufferId buffer, int64_t offset, int64_t num_bytes, const Value& value) const {
    if (num_bytes > 0) visit_({buffer, offset, num_bytes, value});
  }
  void Whole(BufferId buffer, const Value& value) const { Bytes(buffer, 0, plan_.buffer(buffer).num_bytes, value); }

  void VisitUnit(UnitId unit, int64_t sums) const {
    const UnitBuffers& buffers = plan_.unit_buffers[unit.value()];
    for (int g = 0; g < model_.num_groups(unit); ++g) {
      const FlatGroup& group = model_.group(unit, g);
      Whole(buffers.weights[g], model_.Shard(unit, g, moment_.version));
      if (buffers.masters[g] != buffers.weights[g]) {
        Whole(buffers.masters[g], model_.Master(unit, g, moment_.version));
      }
      if (!group.trainable || !model_.trains()) continue;
      for (size_t s = 0; s < buffers.optimizer_states[g].size(); ++s) {
        Whole(buffers.optimizer_states[g][s],
              {ValueKind::kOptimizerState, unit.value(), g, static_cast<int32_t>(s), moment_.version});
      }
      if (moment_.accumulators || !model_.has_gradient(unit, g)) {
        Whole(buffers.accumulators[g], model_.Accumulator(unit, g, sums));
        Bytes(plan_.norm_partials, model_.norm_offset(unit, g), model_.norm_bytes(unit, g),
              model_.NormPartials(unit, g, sums));
      }
      if (moment_.unsharded_gradients) {
        VisitGradients(unit, g, buffers.unsharded_gradient, model_.unsharded_offset(unit, g), SizeOf(kAccumulateDType),
                       &ModelMeaning::Gradient);
      }
    }
  }

  void VisitGradients(UnitId unit, int g, BufferId buffer, int64_t offset, int64_t element_bytes,
                      Value (ModelMeaning::*value)(ParameterId, int64_t) const) const {
    for (const PlacedParameter& placed : model_.group(unit, g).parameters) {
      if (!model_.has_gradient(placed.parameter)) continue;
      Bytes(buffer, offset + placed.first_element * element_bytes, placed.num_elements * element_bytes,
            (model_.*value)(placed.parameter, moment_.time));
    }
  }

  void VisitTensor(TensorId id) const {
    const reprise::Tensor& tensor = plan_.model.tensor(id);
    const TensorBuffers& buffers = plan_.tensor_buffers[id.value()];
    if (buffers.staging.valid()) Whole(buffers.staging, {.kind = ValueKind::kStaging, .id = id.value()});
    if (buffers.value.valid()) {
      Whole(buffers.value, tensor.kind == TensorKind::kState
                               ? model_.State(id, (moment_.time + 1) * model_.state_updates(id))
                               : model_.Tensor(id, moment_.time));
    }
    if (buffers.kept_gradient.valid() && model_.gradient_terms(id) > 0) {
      Whole(buffers.kept_gradient, model_.TensorGradient(id, moment_.time));
    }
  }

  void VisitHeld() const {
    for (const Resident& resident : moment_.held->residents) {
      const UnitLayout& layout = plan_.layout.units[resident.unit.value()];
      for (int g = 0; g < model_.num_groups(resident.unit); ++g) {
        Bytes(resident.buffer, layout.gathered_offsets[g],
              layout.groups[g].num_elements * SizeOf(layout.groups[g].dtype),
              {ValueKind::kGathered, resident.unit.value(), g});
      }
    }
    for (const OutstandingReduction& held : moment_.held->outstanding) {
      for (int g = 0; g < model_.num_groups(held.unit); ++g) {
        VisitGradients(held.unit, g, held.buffer, model_.reduce_offset(held.unit, g),
                       SizeOf(plan_.reduce_dtype(model_.group(held.unit, g))), &ModelMeaning::CastGradient);
      }
    }
  }

  const ModelMeaning& model_;
  const Plan& plan_;
  const Moment& moment_;
  const std::function<void(const Place&)>& visit_;
};

}  // namespace

absl::Status CheckPlaces(const ModelMeaning& model) { return Places(model).Check(); }

void VisitMemory(const ModelMeaning& model, const Moment& moment, const std::function<void(const Place&)>& visit) {
  Memory(model, moment, visit).Visit();
}

}  // namespace reprise::internal
