#include "tests/conformance/plan_runner.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/core/status_macros.h"

namespace reprise::testing {
namespace {

template <class T>
void Append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void AppendAs(std::string& bytes, DType dtype, double value) {
  switch (dtype) {
    case DType::kFloat32:
      return Append(bytes, static_cast<float>(value));
    case DType::kBFloat16:
      return Append(bytes, BFloat16(static_cast<float>(value)));
    case DType::kInt32:
      return Append(bytes, static_cast<int32_t>(value));
    case DType::kUInt8:
      return Append(bytes, static_cast<uint8_t>(value));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<PlanRunner>> PlanRunner::Create(std::shared_ptr<World> world, Plan plan,
                                                               ComputeTable compute, const ParameterValue& parameters,
                                                               RunnerOptions options) {
  std::unique_ptr<PlanRunner> runner(new PlanRunner(std::move(world)));
  runner->bindings_ = std::make_shared<internal::Bindings>();
  internal::Bindings& bindings = *runner->bindings_;
  bindings.plan = std::make_shared<const Plan>(std::move(plan));
  bindings.compute = std::move(compute);
  bindings.optimizer = options.optimizer;
  bindings.clip_norm = options.clip_norm;
  bindings.check_writes = options.check_writes;
  runner->guard_bytes_ = options.guard_bytes;
  bindings.ranks.assign(runner->world_->local_ranks().begin(), runner->world_->local_ranks().end());
  REPRISE_RETURN_IF_ERROR(runner->TakeMemory());
  REPRISE_RETURN_IF_ERROR(runner->WriteParameters(parameters));
  for (size_t s = 0; s < runner->plan().schedules.size(); ++s) {
    REPRISE_ASSIGN_OR_RETURN(runner->executables_.emplace_back(),
                             runner->world_->Record(options.execution, runner->bindings_, static_cast<int>(s)));
  }
  return runner;
}

absl::Status PlanRunner::TakeMemory() {
  for (int s = 0; s < kNumStorages; ++s) {
    const Storage storage = static_cast<Storage>(s);
    const int64_t num_bytes = plan().memory.num_bytes[s] + 2 * guard_bytes_;
    REPRISE_ASSIGN_OR_RETURN(blocks_[s], world_->Allocate(internal::MemoryKindOf(storage), num_bytes));
    for (int local = 0; local < num_local() && (!IsTransient(storage) || guard_bytes_ > 0); ++local) {
      REPRISE_RETURN_IF_ERROR(world_->FillBytes(local, blocks_[s]->address(local), 0, blocks_[s]->num_bytes()));
    }
  }
  bindings_->Place(blocks_);
  for (std::vector<std::byte*>& addresses : bindings_->addresses) {
    for (std::byte*& address : addresses) {
      if (address != nullptr) address += guard_bytes_;
    }
  }
  return absl::OkStatus();
}

absl::Status PlanRunner::WriteFloats(int local, BufferId buffer, DType dtype, absl::Span<const float> values) {
  std::string bytes;
  for (const float value : values) AppendAs(bytes, dtype, value);
  return world_->CopyToRank(local, bindings_->addresses[local][buffer.value()], bytes.data(),
                            static_cast<int64_t>(bytes.size()));
}

absl::Status PlanRunner::WriteParameters(const ParameterValue& value) {
  for (int local = 0; local < num_local(); ++local) {
    for (size_t u = 0; u < plan().layout.units.size(); ++u) {
      const std::vector<FlatGroup>& groups = plan().layout.units[u].groups;
      for (size_t g = 0; g < groups.size(); ++g) {
        std::vector<float> shard(groups[g].shard_elements, 0);
        for (const ShardSegment& segment : Segments(groups[g], bindings_->ranks[local])) {
          for (int64_t i = 0; i < segment.num_elements; ++i) {
            shard[segment.shard_element + i] = value(segment.parameter, segment.parameter_element + i);
          }
        }
        const UnitBuffers& buffers = plan().unit_buffers[u];
        REPRISE_RETURN_IF_ERROR(WriteFloats(local, buffers.weights[g], groups[g].dtype, shard));
        if (buffers.masters[g] == buffers.weights[g]) continue;
        REPRISE_RETURN_IF_ERROR(WriteFloats(local, buffers.masters[g], plan().options.master_dtype, shard));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status PlanRunner::BeginStep(int microbatches) {
  const ControlBlock control = {.learning_rate = 0.01f,
                                .loss_scale = 4,
                                .gradient_divisor = static_cast<float>(plan().world_size() * microbatches),
                                .microbatches = microbatches,
                                .seed = 1,
                                .step = step_++,
                                .earlier_microbatches = staged_};
  for (int local = 0; local < num_local(); ++local) {
    REPRISE_RETURN_IF_ERROR(
        world_->CopyToRank(local, bindings_->addresses[local][plan().control.value()], &control, sizeof(control)));
  }
  return absl::OkStatus();
}

absl::Status PlanRunner::StageInputs(const InputValue& value) {
  const int per_graph = *plan().options.microbatches_per_graph;
  const int slots = 2 * per_graph;
  for (int m = 0; m < per_graph; ++m, ++staged_) {
    for (size_t t = 0; t < plan().model.tensors().size(); ++t) {
      const TensorSpec& spec = plan().model.tensors()[t].spec;
      const BufferId staging = plan().tensor_buffers[t].staging;
      if (!staging.valid()) continue;
      const int64_t stride = plan().buffer(staging).num_bytes / slots;
      for (int local = 0; local < num_local(); ++local) {
        std::string bytes;
        for (int64_t i = 0; i < NumElements(spec.shape); ++i) {
          AppendAs(bytes, spec.dtype, value(bindings_->ranks[local], staged_, TensorId(static_cast<int64_t>(t)), i));
        }
        if (bytes.empty()) continue;
        REPRISE_RETURN_IF_ERROR(
            world_->CopyToRank(local, bindings_->addresses[local][staging.value()] + staged_ % slots * stride,
                               bytes.data(), static_cast<int64_t>(bytes.size())));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status PlanRunner::Fill(BufferId buffer, uint8_t value) {
  for (int local = 0; local < num_local(); ++local) {
    REPRISE_RETURN_IF_ERROR(
        world_->FillBytes(local, bindings_->addresses[local][buffer.value()], value, plan().buffer(buffer).num_bytes));
  }
  return absl::OkStatus();
}

absl::Status PlanRunner::ReplayGraph(int schedule, const InputValue& inputs) {
  REPRISE_RETURN_IF_ERROR(StageInputs(inputs));
  return Replay(schedule);
}

absl::Status PlanRunner::RunStep(int microbatches, const InputValue& inputs) {
  REPRISE_RETURN_IF_ERROR(BeginStep(microbatches));
  for (int m = 0; m < microbatches; m += *plan().options.microbatches_per_graph) {
    REPRISE_RETURN_IF_ERROR(ReplayGraph(m == 0 ? plan().first : plan().body, inputs));
  }
  for (const int schedule : {plan().finish, plan().step}) {
    if (schedule >= 0) REPRISE_RETURN_IF_ERROR(Replay(schedule));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> PlanRunner::Read(int local, BufferId buffer) {
  std::string bytes(static_cast<size_t>(plan().buffer(buffer).num_bytes), '\0');
  REPRISE_RETURN_IF_ERROR(world_->CopyToHost(local, bytes.data(), bindings_->addresses[local][buffer.value()],
                                             static_cast<int64_t>(bytes.size())));
  return bytes;
}

absl::Status PlanRunner::CheckGuards() {
  REPRISE_RETURN_IF_ERROR(world_->Synchronize());
  for (int local = 0; local < num_local(); ++local) {
    for (int s = 0; s < kNumStorages; ++s) {
      REPRISE_RETURN_IF_ERROR(CheckGuards(local, static_cast<Storage>(s)));
    }
  }
  return absl::OkStatus();
}

absl::Status PlanRunner::CheckGuards(int local, Storage storage) {
  const internal::MemoryBlock& block = *blocks_[static_cast<int>(storage)];
  std::string bytes(static_cast<size_t>(block.num_bytes()), '\0');
  REPRISE_RETURN_IF_ERROR(world_->CopyToHost(local, bytes.data(), block.address(local), block.num_bytes()));
  const auto clear = [&](int64_t first, int64_t size) {
    std::fill_n(bytes.begin() + guard_bytes_ + first, size, '\0');
  };
  if (IsTransient(storage)) clear(0, block.num_bytes() - 2 * guard_bytes_);
  for (const Buffer& buffer : plan().buffers) {
    if (buffer.storage == storage && storage != Storage::kExternal) clear(buffer.offset, buffer.num_bytes);
  }
  const size_t changed = bytes.find_first_not_of('\0');
  if (changed == std::string::npos) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("byte ", static_cast<int64_t>(changed) - guard_bytes_, " of storage ",
                                          Name(storage), ", which is in no buffer, has changed"));
}

absl::StatusOr<std::string> PlanRunner::ReadAll() {
  std::set<BufferId> unsharded_gradients;
  for (const UnitBuffers& unit : plan().unit_buffers) unsharded_gradients.insert(unit.unsharded_gradient);
  std::string all;
  for (int local = 0; local < num_local(); ++local) {
    for (size_t b = 0; b < plan().buffers.size(); ++b) {
      const BufferId id(static_cast<int64_t>(b));
      const Storage storage = plan().buffers[b].storage;
      if (IsTransient(storage) || storage == Storage::kExternal || unsharded_gradients.count(id) > 0) continue;
      REPRISE_ASSIGN_OR_RETURN(const std::string bytes, Read(local, id));
      all += bytes;
    }
  }
  REPRISE_RETURN_IF_ERROR(world_->Synchronize());
  return all;
}

}  // namespace reprise::testing
