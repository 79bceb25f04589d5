#include "core/plan/plan_facts.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/model/quoted.h"
#include "core/plan/plan_fields.h"

namespace reprise::internal {
namespace {

// In the order in which facts are listed.
enum class Part : int64_t {
  kWorld,
  kUnits,
  kParameters,
  kTensors,
  kCalls,
  kLoss,
  kOptions,
  kSchedules,  // each in a section of its own
  kSteps,
  kUnitPolicies,
  kMemory,
  kBuffers,
  kUnitLayouts,
  kParameterLayouts,
  kUnitBuffers,
  kTensorBuffers,
  kAxes,
};

template <class Tag>
void AppendId(std::string* out, Id<Tag> id) {
  absl::StrAppend(out, id.value());
}

template <class Tag>
std::string Ids(const std::vector<Id<Tag>>& ids) {
  return absl::StrCat("[", absl::StrJoin(ids, ",", [](std::string* out, Id<Tag> id) { AppendId(out, id); }), "]");
}

std::string Word(const Field& field) {
  return std::visit([](const auto& value) { return absl::StrCat(value); }, field.value);
}

// The structured bindings name all fields of a struct: a new field does not compile until it is told too.
class FactWriter {
 public:
  explicit FactWriter(const Plan& plan) : plan_(plan) {}

  std::vector<Fact> Write() && {
    const auto& [model, layout, options, axes, unit_policies, buffers, unit_buffers, tensor_buffers, control,
                 step_state, norm_partials, norm_parts, metrics, schedules, first, body, finish, step, weight_slots,
                 dedicated_gradient_slots, memory, fingerprint] = plan_;
    const auto& [world_size, units, parameters] = layout;
    Add(Part::kWorld, "the world size", "", absl::StrCat(world_size));
    AddModel(model);
    AddOptions(options);
    for (size_t s = 0; s < schedules.size(); ++s) AddSchedule(static_cast<int64_t>(s), schedules[s]);
    Add(Part::kSteps, "the choice of schedules", "",
        absl::StrCat("first ", first, ", body ", body, ", finish ", finish, ", step ", step));
    Add(Part::kSteps, "the number of weight slots in use", "", absl::StrCat(weight_slots));
    Add(Part::kSteps, "the number of dedicated gradient slots", "", absl::StrCat(dedicated_gradient_slots));
    Add(Part::kSteps, "the choice of buffers", "",
        absl::StrCat("control ", control.value(), ", step_state ", step_state.value(), ", norm_partials ",
                     norm_partials.value(), ", norm_parts ", norm_parts.value(), ", metrics ", metrics.value()));
    for (size_t u = 0; u < unit_policies.size(); ++u) {
      const auto& [transports, sum] = unit_policies[u];
      Add(Part::kUnitPolicies, absl::StrCat("the policy of unit ", u), UnitName(plan_, UnitId(static_cast<int64_t>(u))),
          absl::StrCat("transports ", ToText(EveryUnit(transports)), ", sum ", Name(sum)));
    }
    AddMemory(memory);
    for (size_t b = 0; b < buffers.size(); ++b) {
      const auto& [name, storage, num_bytes, offset] = buffers[b];
      Add(Part::kBuffers, absl::StrCat("buffer ", b), name,
          absl::StrCat(Name(storage), ", ", num_bytes, " bytes at ", offset));
    }
    for (size_t u = 0; u < units.size(); ++u) AddLayout(u, units[u]);
    for (size_t p = 0; p < parameters.size(); ++p) {
      const auto& [group, first_element] = parameters[p];
      Add(Part::kParameterLayouts, absl::StrCat("the place of parameter ", p), ParameterName(plan_, ParameterId(p)),
          absl::StrCat("group ", group, " at element ", first_element));
    }
    for (size_t u = 0; u < unit_buffers.size(); ++u) AddUnitBuffers(u, unit_buffers[u]);
    for (size_t t = 0; t < tensor_buffers.size(); ++t) {
      const auto& [staging, value, kept_gradient] = tensor_buffers[t];
      Add(Part::kTensorBuffers, absl::StrCat("the list of buffers of tensor ", t), "",
          absl::StrCat("staging ", staging.value(), ", value ", value.value(), ", kept gradient ",
                       kept_gradient.value()));
    }
    for (size_t a = 0; a < axes.size(); ++a) {
      const auto& [name, size] = axes[a];
      Add(Part::kAxes, absl::StrCat("axis ", a), name, absl::StrCat("of ", size, " ranks"));
    }
    return std::move(facts_);
  }

 private:
  void Add(Part part, std::string subject, std::string name, std::string value, int64_t section = 0) {
    facts_.push_back(
        {(static_cast<int64_t>(part) << 32) + section, std::move(subject), std::move(name), std::move(value)});
  }

  void AddModel(const Model& model) {
    const std::vector<ModelLine> lines = LinesOf(model);
    size_t line = 0;
    const auto add = [&](Part part, absl::string_view what, size_t count) {
      for (size_t i = 0; i < count; ++i, ++line) {
        absl::string_view rest = lines[line].rest;
        const absl::string_view with = absl::ConsumePrefix(&rest, "; ") ? "with " : "";
        absl::ConsumePrefix(&rest, " ");
        const bool is_tensor = part == Part::kTensors;
        Add(part, absl::StrCat(what, " ", i), lines[line].name,
            absl::StrCat(is_tensor ? lines[line].kind : "", is_tensor ? " " : "", with, rest));
      }
    };
    add(Part::kUnits, "unit", model.units().size());
    add(Part::kParameters, "parameter", model.parameters().size());
    add(Part::kTensors, "tensor", model.tensors().size());
    add(Part::kCalls, "call", model.calls().size());
    Add(Part::kLoss, "the loss", "", line < lines.size() ? Quoted(lines[line].name) : "unset");
  }

  void AddOptions(const PlanOptions& options) {
    for (const Field& field : FieldsOf(options)) {
      Add(Part::kOptions, absl::StrCat("option ", field.name), "", Word(field));
    }
  }

  void AddSchedule(int64_t index, const Schedule& schedule) {
    const auto& [name, microbatches, commands, start, end] = schedule;
    Add(Part::kSchedules, absl::StrCat("schedule ", index), name,
        absl::StrCat("of ", microbatches, " microbatches, starting with ", Text(start), ", ending with ", Text(end)),
        index);
    for (size_t c = 0; c < commands.size(); ++c) {
      Add(Part::kSchedules, absl::StrCat("command ", c, " of schedule ", Quoted(name)), "", Text(commands[c]), index);
    }
  }

  std::string Text(const ScheduleState& state) const {
    const auto& [residents, outstanding, gradients] = state;
    std::string text = gradients ? "unsharded gradients" : "no unsharded gradients";
    for (const auto& [unit, buffer, slot] : residents) {
      absl::StrAppend(&text, ", resident ", UnitName(plan_, unit), " slot ", slot, " in buffer ", buffer.value());
    }
    for (const auto& [unit, buffer, slot] : outstanding) {
      absl::StrAppend(&text, ", outstanding ", UnitName(plan_, unit), " slot ", slot, " in buffer ", buffer.value());
    }
    return text;
  }

  std::string Text(const ScheduledCommand& scheduled) const {
    const auto& [command, lane, uses, waits] = scheduled;
    const CommandFields fields = FieldsOf(plan_, command);
    std::string text(fields.kind);
    for (const Field& field : fields.fields) absl::StrAppend(&text, " ", field.name, "=", Word(field));
    absl::StrAppend(&text, " on lane ", Name(lane));
    for (const auto& [waited, reason] : waits) {
      absl::StrAppend(&text, ", waits for ", waited.value(), " (", Name(reason), ")");
    }
    for (const auto& [buffer, offset, num_bytes, access, role, id, peers] : uses) {
      absl::StrAppend(&text, ", ", Name(access), " ", Name(role), " ", id, ": ", num_bytes, " bytes at ", offset,
                      " of buffer ", buffer.value());
      if (peers.valid()) absl::StrAppend(&text, " of peers on axis ", peers.value());
    }
    if (const auto* const accumulate = std::get_if<Accumulate>(&command)) {
      for (const auto& [group, first_element, num_elements] : accumulate->segments) {
        absl::StrAppend(&text, ", segment of ", num_elements, " at ", first_element, " of group ", group);
      }
    }
    return text;
  }

  void AddMemory(const MemoryPlan& memory) {
    const auto& [num_bytes, lower_bound] = memory;
    for (int s = 0; s < kNumStorages; ++s) {
      Add(Part::kMemory, absl::StrCat("the ", Name(static_cast<Storage>(s)), " memory"), "",
          absl::StrCat(num_bytes[s], " bytes (at least ", lower_bound[s], ")"));
    }
  }

  void AddLayout(size_t index, const UnitLayout& layout) {
    const auto& [groups, gathered_offsets, gathered_bytes] = layout;
    std::string text =
        absl::StrCat(gathered_bytes, " bytes when gathered, groups at [", absl::StrJoin(gathered_offsets, ","), "]");
    for (const auto& [dtype, reduce_dtype, trainable, parameters, num_elements, shard_elements] : groups) {
      absl::StrAppend(&text, "; group ", Name(dtype), trainable ? "" : " frozen", " reduce_dtype ",
                      reduce_dtype.has_value() ? Name(*reduce_dtype) : "by option", ", shard ", shard_elements, " of ",
                      num_elements, ":");
      for (const auto& [parameter, first_element, count] : parameters) {
        absl::StrAppend(&text, " ", ParameterName(plan_, parameter), " ", count, " at ", first_element);
      }
    }
    Add(Part::kUnitLayouts, absl::StrCat("the layout of unit ", index),
        UnitName(plan_, UnitId(static_cast<int64_t>(index))), std::move(text));
  }

  void AddUnitBuffers(size_t index, const UnitBuffers& buffers) {
    const auto& [weights, masters, accumulators, unsharded_gradient, optimizer_states, norm_partials] = buffers;
    std::string text = absl::StrCat("weights ", Ids(weights), ", masters ", Ids(masters), ", accumulators ",
                                    Ids(accumulators), ", unsharded gradient ", unsharded_gradient.value(),
                                    ", norm partials at [", absl::StrJoin(norm_partials, ","), "], optimizer states");
    for (const std::vector<BufferId>& states : optimizer_states) absl::StrAppend(&text, " ", Ids(states));
    Add(Part::kUnitBuffers, absl::StrCat("the list of buffers of unit ", index), "", std::move(text));
  }

  const Plan& plan_;
  std::vector<Fact> facts_;
};

}  // namespace

std::vector<Fact> FactsOf(const Plan& plan) { return FactWriter(plan).Write(); }

}  // namespace reprise::internal
