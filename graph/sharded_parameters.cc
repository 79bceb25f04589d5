#include "reprise/graph/sharded_parameters.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/model/hasher.h"
#include "core/model/quoted.h"
#include "core/plan/persistent_buffers.h"
#include "graph/command_error.h"
#include "graph/gather_parameter.h"
#include "graph/in_use.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

using internal::AgreedValue;
using internal::MemoryBlock;
using internal::Quoted;

std::string ToText(const Parameter& parameter, absl::Span<const Unit> units) {
  const ParameterSpec& spec = parameter.spec;
  return absl::StrCat(
      Quoted(spec.name), " of unit ", Quoted(units[parameter.unit.value()].name), ", ", std::string(Name(spec.dtype)),
      " [", absl::StrJoin(spec.shape, ", "), "]", spec.trainable ? "" : ", frozen",
      spec.reduce_dtype.has_value() ? absl::StrCat(", reduce_dtype ", std::string(Name(*spec.reduce_dtype))) : "");
}

// `what`, its index, and both sides; either side may be missing.
absl::Status Different(absl::string_view what, size_t index, const std::string& theirs, const std::string& ours) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the model's units and parameters are not those of the ShardedParameters: ", what, " ", index, " is ", theirs,
      " in the model but ", ours, " there; build both from the same units and parameters, in the same order"));
}

uint64_t HashOf(absl::Span<const float> values) {
  internal::Hasher hasher;
  size_t i = 0;
  for (; i + 1 < values.size(); i += 2) {
    hasher.Add(uint64_t{std::bit_cast<uint32_t>(values[i])} << 32 | std::bit_cast<uint32_t>(values[i + 1]));
  }
  if (i < values.size()) hasher.Add(uint64_t{std::bit_cast<uint32_t>(values[i])});
  return hasher.Finish().high;
}

std::string InitializerOf(const ParameterSpec& spec) {
  return absl::StrCat("initializer of parameter ", Quoted(spec.name));
}

// Of the first values of every parameter: values do not depend on how runs are cut.
absl::StatusOr<uint64_t> HashOfFirst(const Model& model, const ShardedParameters::Initializer& initializer) {
  constexpr int64_t kProbed = 4;
  internal::Hasher hasher;
  for (const Parameter& parameter : model.parameters()) {
    std::vector<float> values(static_cast<size_t>(std::min(kProbed, NumElements(parameter.spec.shape))));
    REPRISE_RETURN_IF_ERROR(internal::WithoutExceptions(InitializerOf(parameter.spec), [&] {
      if (!values.empty()) initializer(parameter.spec, 0, absl::MakeSpan(values));
      return absl::OkStatus();
    }));
    hasher.Add(HashOf(values));
  }
  return hasher.Finish().high;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ShardedParameters>> ShardedParameters::Create(std::shared_ptr<World> world,
                                                                             const Model& model, DType master) {
  if (!IsFloatingPoint(master)) {
    return absl::InvalidArgumentError(absl::StrCat("master dtype is ", std::string(Name(master)), "; use f32 or bf16"));
  }
  if (world == nullptr) {
    return absl::InvalidArgumentError("ShardedParameters::Create: no world; make one, as by CreateHostWorld");
  }
  REPRISE_ENTER(*world, "ShardedParameters::Create");
  std::shared_ptr<internal::Machine> machine = internal::MachineOf(std::move(world));
  std::shared_ptr<ShardedParameters> result(new ShardedParameters());
  REPRISE_ASSIGN_OR_RETURN(result->layout_, LayOut(model, machine->size()));
  internal::ParameterBuffers plan = internal::PlanParameterBuffers(model, result->layout_, master);
  const auto allocate = [&](Storage storage) -> absl::StatusOr<std::shared_ptr<MemoryBlock>> {
    const int64_t num_bytes = plan.num_bytes[static_cast<int>(storage)];
    REPRISE_ASSIGN_OR_RETURN(std::shared_ptr<MemoryBlock> block,
                             machine->Allocate(internal::MemoryKindOf(storage), num_bytes));
    for (size_t local = 0; local < machine->local_ranks().size() && num_bytes > 0; ++local) {
      const int index = static_cast<int>(local);
      REPRISE_RETURN_IF_ERROR(machine->FillBytes(index, block->address(index), 0, num_bytes));
    }
    return block;
  };
  REPRISE_ASSIGN_OR_RETURN(result->weights_, allocate(Storage::kWeights));
  REPRISE_ASSIGN_OR_RETURN(result->masters_, allocate(Storage::kMasters));
  result->number_ = machine->in_use().NextNumber();
  result->world_ = std::move(machine);
  result->model_ = model;
  for (const Parameter& parameter : model.parameters()) {
    result->is_set_.push_back(NumElements(parameter.spec.shape) == 0);
  }
  result->master_ = master;
  result->buffers_ = std::move(plan.buffers);
  result->unit_buffers_ = std::move(plan.units);
  return result;
}

absl::Status ShardedParameters::Initialize(const Initializer& initializer) {
  REPRISE_ENTER(*world_, "ShardedParameters::Initialize");
  absl::StatusOr<uint64_t> probe = 0;
  if (initializer == nullptr) {
    probe = absl::InvalidArgumentError("Initialize: no initializer; pass Normal, Constant or a function");
  } else if (const absl::Status in_step = CheckNoStep("Initialize"); !in_step.ok()) {
    probe = in_step;
  } else if (!world_->is_all_local()) {
    probe = HashOfFirst(model_, initializer);
  }
  REPRISE_RETURN_IF_ERROR(world_->AgreeOn("Initialize", probe.status(),
                                          {AgreedValue::Integer("number of the ShardedParameters", number_),
                                           AgreedValue::Hash("a hash of first values", probe.value_or(0))}));
  ++version_;
  // One rank's initializer may fail where another's does not: then all have a mixture.
  absl::Status filled = world_->AgreeOn("end of Initialize", FillAll(initializer), {});
  for (size_t p = 0; p < is_set_.size() && !filled.ok(); ++p) {
    is_set_[p] = NumElements(model_.parameters()[p].spec.shape) == 0;
  }
  return filled;
}

absl::Status ShardedParameters::FillAll(const Initializer& initializer) {
  for (size_t p = 0; p < model_.parameters().size(); ++p) {
    const ParameterSpec& spec = model_.parameters()[p].spec;
    REPRISE_RETURN_IF_ERROR(internal::WithoutExceptions(InitializerOf(spec), [&] {
      return Fill(ParameterId(static_cast<int64_t>(p)),
                  [&](int64_t first_element, absl::Span<float> values) { initializer(spec, first_element, values); });
    }));
  }
  return absl::OkStatus();
}

absl::Status ShardedParameters::Write(absl::string_view name, absl::Span<const float> whole) {
  REPRISE_ENTER(*world_, "ShardedParameters::Write");
  const absl::StatusOr<ParameterId> id = CheckWrite(name, whole);
  const uint64_t hash = id.ok() && !world_->is_all_local() ? HashOf(whole) : 0;
  REPRISE_RETURN_IF_ERROR(world_->AgreeOn(absl::StrCat("Write of parameter ", Quoted(name)), id.status(),
                                          {AgreedValue::Integer("number of the ShardedParameters", number_),
                                           AgreedValue::Hash("a hash of the values", hash)}));
  ++version_;
  return Fill(*id, [&](int64_t first_element, absl::Span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = whole[static_cast<size_t>(first_element) + i];
  });
}

absl::StatusOr<ParameterId> ShardedParameters::CheckWrite(absl::string_view name, absl::Span<const float> whole) const {
  REPRISE_ASSIGN_OR_RETURN(const ParameterId id, model_.FindParameter(name));
  const int64_t num_elements = NumElements(model_.parameter(id).spec.shape);
  if (static_cast<int64_t>(whole.size()) != num_elements) {
    return absl::InvalidArgumentError(absl::StrCat("Write of parameter ", Quoted(name), ": ", whole.size(),
                                                   " values for ", num_elements,
                                                   " elements; give the whole parameter"));
  }
  if (num_elements > 0 && whole.data() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("Write of parameter ", Quoted(name), ": null instead of values"));
  }
  REPRISE_RETURN_IF_ERROR(CheckNoStep(absl::StrCat("Write of parameter ", Quoted(name))));
  return id;
}

absl::Status ShardedParameters::Fill(ParameterId parameter,
                                     const std::function<void(int64_t, absl::Span<float>)>& values_at) {
  const int unit = model_.parameter(parameter).unit.value();
  const int g = layout_.parameters[parameter.value()].group;
  const FlatGroup& group = layout_.units[unit].groups[g];
  is_set_[parameter.value()] = false;  // after a failure its values are a mixture
  for (size_t local = 0; local < world_->local_ranks().size(); ++local) {
    for (const ShardSegment& segment : Segments(group, world_->local_ranks()[local])) {
      if (segment.parameter != parameter) continue;
      std::vector<float> values(static_cast<size_t>(segment.num_elements));
      values_at(segment.parameter_element, absl::MakeSpan(values));
      // The weights are the cast of the masters, as after every step.
      std::vector<std::byte> masters(values.size() * SizeOf(master_)), weights(values.size() * SizeOf(group.dtype));
      REPRISE_RETURN_IF_ERROR(
          internal::CastOnHost(DType::kFloat32, values.data(), master_, masters.data(), segment.num_elements));
      REPRISE_RETURN_IF_ERROR(
          internal::CastOnHost(master_, masters.data(), group.dtype, weights.data(), segment.num_elements));
      const auto write = [&](BufferId buffer, DType dtype, const std::vector<std::byte>& bytes) {
        const int index = static_cast<int>(local);
        return world_->CopyToRank(index, address(buffer, index) + segment.shard_element * SizeOf(dtype), bytes.data(),
                                  static_cast<int64_t>(bytes.size()));
      };
      REPRISE_RETURN_IF_ERROR(write(unit_buffers_[unit].masters[g], master_, masters));
      REPRISE_RETURN_IF_ERROR(write(unit_buffers_[unit].weights[g], group.dtype, weights));
    }
  }
  is_set_[parameter.value()] = true;
  return absl::OkStatus();
}

void ShardedParameters::WatchStep(const std::shared_ptr<const int64_t>& open_step) {
  open_steps_.erase(std::remove_if(open_steps_.begin(), open_steps_.end(), [](const auto& s) { return s.expired(); }),
                    open_steps_.end());
  open_steps_.push_back(open_step);
}

absl::Status ShardedParameters::CheckNoStep(absl::string_view what) const {
  for (const std::weak_ptr<const int64_t>& watched : open_steps_) {
    const std::shared_ptr<const int64_t> open_step = watched.lock();
    if (open_step == nullptr || *open_step < 0) continue;
    return absl::FailedPreconditionError(absl::StrCat(what, ": step ", *open_step,
                                                      " of a session on these parameters is open; call its EndStep or "
                                                      "DiscardGradients first"));
  }
  return absl::OkStatus();
}

absl::Status ShardedParameters::CheckSet(absl::string_view what, ParameterId parameter) const {
  if (is_set_[parameter.value()]) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(what, ": parameter ", Quoted(model_.parameter(parameter).spec.name),
                                                    " was never set; call ShardedParameters::Initialize or Write"));
}

absl::Status ShardedParameters::CheckSet(absl::string_view what) const {
  REPRISE_ENTER(*world_, "ShardedParameters::CheckSet");
  for (size_t p = 0; p < is_set_.size(); ++p) {
    REPRISE_RETURN_IF_ERROR(CheckSet(what, ParameterId(static_cast<int64_t>(p))));
  }
  return absl::OkStatus();
}

std::byte* ShardedParameters::address(BufferId buffer, int local) const {
  const Buffer& placed = buffers_[buffer.value()];
  std::byte* base = memory(placed.storage)->address(local);
  return base == nullptr ? nullptr : base + placed.offset;
}

absl::StatusOr<std::vector<float>> ShardedParameters::Read(absl::string_view name) const {
  REPRISE_ENTER(*world_, "ShardedParameters::Read");
  const std::string what = absl::StrCat("Read of parameter ", Quoted(name));
  const absl::StatusOr<ParameterId> id = model_.FindParameter(name);
  const absl::Status set = id.ok() ? CheckSet("Read", *id) : id.status();
  if (!set.ok()) return internal::RefuseToGather(*world_, what, set);
  const UnitBuffers& buffers = unit_buffers_[model_.parameter(*id).unit.value()];
  const BufferId buffer = buffers.masters[layout_.parameters[id->value()].group];
  std::vector<const std::byte*> shards;
  for (size_t local = 0; local < world_->local_ranks().size(); ++local) {
    shards.push_back(address(buffer, static_cast<int>(local)));
  }
  return internal::GatherParameter(*world_, what, absl::StrCat("the ShardedParameters of number ", number_), model_,
                                   layout_, *id, master_, shards);
}

std::shared_ptr<World> ShardedParameters::world() const { return world_; }

std::shared_ptr<MemoryBlock> ShardedParameters::memory(Storage storage) const {
  if (storage == Storage::kWeights) return weights_;
  return storage == Storage::kMasters ? masters_ : nullptr;
}

absl::Status ShardedParameters::CheckSameParameters(const Model& model) const {
  const absl::Span<const Unit> theirs = model.units(), ours = model_.units();
  for (size_t u = 0; u < std::max(theirs.size(), ours.size()); ++u) {
    if (u < theirs.size() && u < ours.size() && theirs[u].name == ours[u].name) continue;
    return Different("unit", u, u < theirs.size() ? Quoted(theirs[u].name) : "missing",
                     u < ours.size() ? Quoted(ours[u].name) : "missing");
  }
  const absl::Span<const Parameter> their_parameters = model.parameters(), our_parameters = model_.parameters();
  for (size_t p = 0; p < std::max(their_parameters.size(), our_parameters.size()); ++p) {
    if (p < their_parameters.size() && p < our_parameters.size() &&
        their_parameters[p].spec == our_parameters[p].spec && their_parameters[p].unit == our_parameters[p].unit) {
      continue;
    }
    return Different("parameter", p,
                     p < their_parameters.size() ? ToText(their_parameters[p], theirs) : std::string("missing"),
                     p < our_parameters.size() ? ToText(our_parameters[p], ours) : std::string("missing"));
  }
  return absl::OkStatus();
}

ShardedParameters::Initializer Normal(uint64_t seed, float stddev) {
  return [=](const ParameterSpec& spec, int64_t first_element, absl::Span<float> values) {
    internal::Hasher stream;
    stream.Add(seed);
    stream.Add(spec.name);
    for (size_t i = 0; i < values.size(); ++i) {
      internal::Hasher element = stream;
      element.Add(static_cast<uint64_t>(first_element) + i);
      const Fingerprint words = element.Finish();
      // Box and Muller's method on two uniform numbers of 53 bits, the first in (0, 1].
      const double radius = std::sqrt(-2.0 * std::log(static_cast<double>((words.high >> 11) + 1) * 0x1p-53));
      const double angle = 2.0 * std::numbers::pi * static_cast<double>(words.low >> 11) * 0x1p-53;
      values[i] = static_cast<float>(stddev * radius * std::cos(angle));
    }
  };
}

ShardedParameters::Initializer Constant(float value) {
  return [=](const ParameterSpec&, int64_t, absl::Span<float> values) {
    for (float& element : values) element = value;
  };
}

}  // namespace reprise
