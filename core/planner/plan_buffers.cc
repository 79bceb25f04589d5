#include "core/planner/plan_buffers.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/plan/persistent_buffers.h"
#include "reprise/core/control_block.h"
#include "reprise/core/norm_ranges.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

constexpr int64_t AlignUp(int64_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

// Of a gradient of all groups, each in the dtype that `dtype_of` gives it.
template <class DTypeOf>
std::vector<int64_t> GradientOffsets(const Plan& plan, UnitId unit, const DTypeOf& dtype_of) {
  std::vector<int64_t> offsets = {0};
  for (const FlatGroup& group : plan.layout.units[unit.value()].groups) {
    const int64_t bytes = group.trainable ? group.num_elements * SizeOf(dtype_of(group)) : 0;
    offsets.push_back(offsets.back() + AlignUp(bytes));
  }
  return offsets;
}

}  // namespace

std::vector<int64_t> ReduceOffsets(const Plan& plan, UnitId unit) {
  return GradientOffsets(plan, unit, [&](const FlatGroup& group) { return plan.reduce_dtype(group); });
}

int ReceivedParts(const Plan& plan, Sum sum) {
  switch (sum) {
    case Sum::kRankOrder:
      return plan.world_size() - 1;
    case Sum::kNccl:
      return 1;
  }
  return 0;
}

namespace internal {
namespace {

void AddTrainingBuffers(Plan& plan) {
  const Model& model = plan.model;
  int64_t norm_bytes = 0;
  for (size_t u = 0; u < plan.layout.units.size(); ++u) {
    const std::vector<FlatGroup>& groups = plan.layout.units[u].groups;
    UnitBuffers& unit = plan.unit_buffers[u];
    for (size_t g = 0; g < groups.size(); ++g) {
      std::string suffix = model.units()[u].name;
      if (groups.size() > 1) absl::StrAppend(&suffix, ".", g);
      std::vector<BufferId>& states = unit.optimizer_states.emplace_back();
      unit.norm_partials.push_back(norm_bytes);
      if (!groups[g].trainable) {
        unit.accumulators.emplace_back();
        continue;
      }
      const int64_t shard_bytes = groups[g].shard_elements * SizeOf(kAccumulateDType);
      norm_bytes += NormRanges(groups[g].shard_elements) * static_cast<int64_t>(sizeof(double));
      unit.accumulators.push_back(
          AddBuffer(plan, absl::StrCat("accumulator.", suffix), Storage::kSession, shard_bytes));
      for (int s = 0; s < plan.options.optimizer_states; ++s) {
        states.push_back(AddBuffer(plan, absl::StrCat("optimizer", s, ".", suffix), Storage::kSession,
                                   groups[g].shard_elements * SizeOf(DType::kFloat32)));
      }
    }
    const bool trains =
        std::any_of(groups.begin(), groups.end(), [](const FlatGroup& group) { return group.trainable; });
    if (!trains || plan.options.reduce != Reduce::kOncePerStep) continue;
    const Storage storage =
        ReducesInPlace(plan.options, plan.layout.units[u]) ? Storage::kGradients : Storage::kSession;
    unit.unsharded_gradient = AddBuffer(plan, absl::StrCat("unsharded_gradient.", model.units()[u].name), storage,
                                        UnshardedGradientOffsets(plan, UnitId(static_cast<int64_t>(u))).back());
  }
  plan.step_state = AddBuffer(plan, "step_state", Storage::kSession, sizeof(StepState));
  plan.norm_partials = AddBuffer(plan, "norm_partials", Storage::kSession, norm_bytes);
  plan.norm_parts = AddBuffer(plan, "norm_parts", Storage::kSession,
                              (int64_t{1} + plan.world_size()) * static_cast<int64_t>(sizeof(NormPart)));
  plan.metrics = AddBuffer(plan, "metrics", Storage::kHostVisible, sizeof(MetricsRing));
}

// Two slots for each microbatch of a graph, of a tensor of `num_bytes`. No other buffer is a multiple of what the
// model's own limits bound.
absl::StatusOr<int64_t> StagingBytes(const Plan& plan, const std::string& name, int64_t num_bytes) {
  const int64_t slots = int64_t{2} * *plan.options.microbatches_per_graph;
  const int64_t padded = AlignUp(num_bytes);
  if (padded <= std::numeric_limits<int64_t>::max() / slots) return slots * padded;
  return absl::ResourceExhaustedError(absl::StrCat("staging of input \"", name, "\" takes ", slots, " slots of ",
                                                   padded, " bytes, which exceed ", std::numeric_limits<int64_t>::max(),
                                                   "; make the input smaller or lower microbatches_per_graph"));
}

absl::Status AddTensorBuffers(Plan& plan, bool training) {
  for (const Tensor& tensor : plan.model.tensors()) {
    TensorBuffers& buffers = plan.tensor_buffers.emplace_back();
    const std::string& name = tensor.spec.name;
    const int64_t bytes = TensorBytes(tensor.spec);
    if (tensor.spec.external) {
      buffers.value = AddBuffer(plan, name, Storage::kExternal, bytes);
    } else if (tensor.kind == TensorKind::kInput) {
      REPRISE_ASSIGN_OR_RETURN(const int64_t staging_bytes, StagingBytes(plan, name, bytes));
      buffers.staging = AddBuffer(plan, absl::StrCat("staging.", name), Storage::kSession, staging_bytes);
    } else if (tensor.kind != TensorKind::kActivation) {
      buffers.value = AddBuffer(plan, name, Storage::kSession, bytes);
    }
    if (tensor.keep_gradient && training) {
      buffers.kept_gradient = AddBuffer(plan, absl::StrCat("kept_gradient.", name), Storage::kSession, bytes);
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t TensorBytes(const TensorSpec& spec) { return NumElements(spec.shape) * SizeOf(spec.dtype); }

BufferId AddBuffer(Plan& plan, std::string name, Storage storage, int64_t num_bytes) {
  plan.buffers.push_back({std::move(name), storage, num_bytes, 0});
  return BufferId(static_cast<int64_t>(plan.buffers.size()) - 1);
}

absl::Status AddPersistentBuffers(Plan& plan, bool training) {
  ParameterBuffers parameters = PlanParameterBuffers(plan.model, plan.layout, plan.options.master_dtype);
  plan.buffers = std::move(parameters.buffers);
  plan.unit_buffers = std::move(parameters.units);
  plan.control = AddBuffer(plan, "control", Storage::kSession, sizeof(ControlBlock));
  if (training) AddTrainingBuffers(plan);
  return AddTensorBuffers(plan, training);
}

bool ReducesInPlace(const PlanOptions& options, const UnitLayout& unit) {
  if (options.reduce != Reduce::kOncePerStep) return false;
  return std::all_of(unit.groups.begin(), unit.groups.end(), [&](const FlatGroup& group) {
    return !group.trainable || group.reduce_dtype.value_or(options.reduce_dtype) == kAccumulateDType;
  });
}

std::vector<int64_t> UnshardedGradientOffsets(const Plan& plan, UnitId unit) {
  return GradientOffsets(plan, unit, [&](const FlatGroup&) { return kAccumulateDType; });
}

BufferId AddGatheredBuffer(Plan& plan, UnitId unit, const std::string& label) {
  return AddBuffer(plan, absl::StrCat("gathered.", plan.model.unit(unit).name, ".", label), Storage::kCommunicating,
                   plan.layout.units[unit.value()].gathered_bytes);
}

BufferId AddReduceBuffer(Plan& plan, UnitId unit, const std::string& label) {
  return AddBuffer(plan, absl::StrCat("reduce.", plan.model.unit(unit).name, ".", label), Storage::kCommunicating,
                   ReduceOffsets(plan, unit).back());
}

void AddPeerUse(Transport transport, AxisId axis, std::vector<BufferUse>& uses) {
  if (!TraitsOf(transport).writes_peers) return;
  BufferUse use = uses.back();
  use.peers = axis;
  uses.push_back(use);
}

}  // namespace internal
}  // namespace reprise
