#include "graph/step_runner.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "reprise/core/control_block.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// GEMMs of equal numbers draw less power, and so run faster, than those of real ones.
std::vector<BFloat16> SmallNumbers() {
  constexpr int64_t kNumbers = int64_t{1} << 20;
  std::minstd_rand random(17);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<BFloat16> numbers;
  for (int64_t i = 0; i < kNumbers; ++i) numbers.push_back(BFloat16(normal(random)));
  return numbers;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepRunner>> StepRunner::Create(std::shared_ptr<Machine> world, Plan plan,
                                                               const ComputeTable& compute) {
  std::unique_ptr<StepRunner> runner(new StepRunner(std::move(world)));
  runner->bindings_ = std::make_shared<Bindings>();
  runner->bindings_->plan = std::make_shared<const Plan>(std::move(plan));
  runner->bindings_->compute = compute;
  const absl::Span<const int> ranks = runner->world_->local_ranks();
  runner->bindings_->ranks.assign(ranks.begin(), ranks.end());
  REPRISE_RETURN_IF_ERROR(runner->TakeMemory());
  std::vector<std::unique_ptr<Executable>> eager;
  REPRISE_RETURN_IF_ERROR(runner->RecordInto(eager, Execution::kEager));
  REPRISE_RETURN_IF_ERROR(runner->BeginStep());
  for (const int schedule : {runner->plan().first, runner->plan().body}) {
    REPRISE_RETURN_IF_ERROR(eager[schedule]->Replay());
  }
  REPRISE_RETURN_IF_ERROR(runner->world_->Synchronize());
  return runner;
}

absl::Status StepRunner::Record(Execution execution) {
  const auto start = std::chrono::steady_clock::now();
  REPRISE_RETURN_IF_ERROR(RecordInto(executables_, execution));
  record_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return absl::OkStatus();
}

absl::Status StepRunner::TakeMemory() {
  const Plan& plan = *bindings_->plan;
  StorageBlocks blocks;
  for (int s = 0; s < kNumStorages; ++s) {
    REPRISE_ASSIGN_OR_RETURN(blocks[s],
                             world_->Allocate(MemoryKindOf(static_cast<Storage>(s)), plan.memory.num_bytes[s]));
  }
  bindings_->Place(blocks);
  for (size_t local = 0; local < bindings_->ranks.size(); ++local) {
    const int index = static_cast<int>(local);
    for (int s = 0; s < kNumStorages; ++s) {
      // Gathered weights too: `local` never gathers them.
      if (MemoryKindOf(static_cast<Storage>(s)) == MemoryKind::kCommunicating) {
        REPRISE_RETURN_IF_ERROR(FillRandomly(index, blocks[s]->address(index), blocks[s]->num_bytes()));
      } else {
        REPRISE_RETURN_IF_ERROR(world_->FillBytes(index, blocks[s]->address(index), 0, blocks[s]->num_bytes()));
      }
    }
    std::vector<std::byte*>& addresses = bindings_->addresses[local];
    for (size_t t = 0; t < plan.model.tensors().size(); ++t) {
      const TensorSpec& spec = plan.model.tensors()[t].spec;
      if (const BufferId staging = plan.tensor_buffers[t].staging; staging.valid() && IsFloatingPoint(spec.dtype)) {
        REPRISE_RETURN_IF_ERROR(FillRandomly(index, addresses[staging.value()], plan.buffer(staging).num_bytes));
      }
      if (!spec.external) continue;
      const BufferId buffer = plan.tensor_buffers[t].value;
      const int64_t num_bytes = plan.buffer(buffer).num_bytes;
      REPRISE_ASSIGN_OR_RETURN(const std::shared_ptr<MemoryBlock> block,
                               world_->Allocate(MemoryKind::kLocal, num_bytes));
      bindings_->memory.push_back(block);
      addresses[buffer.value()] = block->address(index);
      if (spec.dtype == DType::kInt32) {
        REPRISE_RETURN_IF_ERROR(world_->FillBytes(index, block->address(index), 0, num_bytes));
      } else {
        REPRISE_RETURN_IF_ERROR(FillRandomly(index, block->address(index), num_bytes));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status StepRunner::FillRandomly(int local, std::byte* to, int64_t num_bytes) const {
  static const std::vector<BFloat16>& numbers = *new std::vector<BFloat16>(SmallNumbers());
  const int64_t bytes = static_cast<int64_t>(numbers.size()) * SizeOf(DType::kBFloat16);
  for (int64_t done = 0; done < num_bytes; done += bytes) {
    REPRISE_RETURN_IF_ERROR(world_->CopyToRank(local, to + done, numbers.data(), std::min(num_bytes - done, bytes)));
  }
  return absl::OkStatus();
}

absl::Status StepRunner::RecordInto(std::vector<std::unique_ptr<Executable>>& executables, Execution execution) const {
  const Plan& plan = *bindings_->plan;
  executables.resize(plan.schedules.size());
  for (const int s : {plan.first, plan.body}) {
    if (executables[s] != nullptr) continue;
    REPRISE_ASSIGN_OR_RETURN(executables[s], world_->Record(execution, bindings_, s));
  }
  return absl::OkStatus();
}

absl::Status StepRunner::BeginStep() {
  const ControlBlock control = {.seed = 1};
  for (size_t local = 0; local < bindings_->ranks.size(); ++local) {
    REPRISE_RETURN_IF_ERROR(world_->CopyToRank(static_cast<int>(local),
                                               bindings_->addresses[local][bindings_->plan->control.value()], &control,
                                               sizeof(control)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> StepRunner::ReadAccumulators() {
  constexpr int64_t kBytes = int64_t{1} << 20;
  const Plan& plan = *bindings_->plan;
  std::string all;
  for (const UnitBuffers& unit : plan.unit_buffers) {
    for (const BufferId buffer : unit.accumulators) {
      if (!buffer.valid()) continue;
      std::string bytes(static_cast<size_t>(std::min(kBytes, plan.buffer(buffer).num_bytes)), '\0');
      REPRISE_RETURN_IF_ERROR(world_->CopyToHost(0, bytes.data(), bindings_->addresses[0][buffer.value()],
                                                 static_cast<int64_t>(bytes.size())));
      all += bytes;
    }
  }
  return all;
}

}  // namespace reprise::internal
