#include "graph/session_core.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/model/quoted.h"
#include "graph/agree_on_plan.h"
#include "graph/check_writes.h"
#include "graph/session_checks.h"
#include "reprise/core/status_macros.h"
#include "reprise/core/verifier.h"

namespace reprise::internal {
namespace {

constexpr int64_t kScratchGuard = 4096;  // bytes
// Bytes of 0.0115 and -0.023 in fp32 and in bf16.
constexpr uint8_t kPositive = 0x3c, kNegative = 0xbc;

// This thread's last launch of each core, by the core's number.
thread_local std::unordered_map<int64_t, int64_t> launches;

absl::Status ZeroBlock(Machine& world, const std::shared_ptr<MemoryBlock>& block) {
  for (size_t local = 0; local < world.local_ranks().size() && block->num_bytes() > 0; ++local) {
    const int index = static_cast<int>(local);
    REPRISE_RETURN_IF_ERROR(world.FillBytes(index, block->address(index), 0, block->num_bytes()));
  }
  return absl::OkStatus();
}

// Fills in the world's transports where the options leave them to it, and says why these.
std::string TakeTransports(const Machine& world, PlanOptions& options) {
  AutoTransports proposed = world.auto_transports();
  options.sum = options.sum.value_or(proposed.sum);
  if (!options.transports.empty()) return {};
  options.transports = std::move(proposed.choices);
  for (TransportChoice& choice : options.transports) {
    Transport& exchange = choice.transports.exchange;
    if (*options.sum == Sum::kNccl && !TraitsOf(exchange).adds) exchange = Transport::kNccl;
  }
  return std::move(proposed.reason);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Arena>> AllocateArena(Machine& world,
                                                     const std::array<int64_t, kNumStorages>& num_bytes) {
  auto arena = std::make_shared<Arena>();
  const auto allocate = [&](Storage storage) {
    return world.Allocate(MemoryKindOf(storage), num_bytes[static_cast<int>(storage)]);
  };
  REPRISE_ASSIGN_OR_RETURN(arena->communicating, allocate(Storage::kCommunicating));
  REPRISE_ASSIGN_OR_RETURN(arena->local, allocate(Storage::kLocal));
  return arena;
}

absl::StatusOr<CoreInputs> PrepareCore(std::shared_ptr<ShardedParameters> parameters, const Model& model,
                                       ComputeTable compute, RunOptions run,
                                       absl::StatusOr<Plan> (*plan)(const Model&, int, const PlanOptions&)) {
  REPRISE_RETURN_IF_ERROR(parameters->CheckSameParameters(model));
  const Machine& world = parameters->machine();
  run.plan.master_dtype = parameters->master();
  CoreInputs inputs;
  inputs.transport_reason = TakeTransports(world, run.plan);
  REPRISE_ASSIGN_OR_RETURN(Plan made, plan(model, world.size(), run.plan));
  REPRISE_RETURN_IF_ERROR(Verify(made));
  REPRISE_RETURN_IF_ERROR(CheckCompute(made, compute));
  REPRISE_RETURN_IF_ERROR(CheckExternal(made, world.local_ranks(), run.external));
  inputs.bindings = {.plan = std::make_shared<const Plan>(std::move(made)), .compute = std::move(compute)};
  inputs.parameters = std::move(parameters);
  inputs.run = std::move(run);
  return inputs;
}

absl::StatusOr<std::unique_ptr<SessionCore>> SessionCore::Create(CoreInputs inputs,
                                                                 const absl::StatusOr<std::shared_ptr<Arena>>& arena) {
  std::unique_ptr<SessionCore> core(new SessionCore(std::move(inputs)));
  const auto agree = [&core](absl::string_view phase, const absl::Status& mine) {
    return core->world().Agree(PhaseOf(phase, core->inputs_.name), mine, core->plan().fingerprint);
  };
  if (arena.ok()) core->arena_ = *arena;
  REPRISE_RETURN_IF_ERROR(agree("taking memory", arena.ok() ? core->TakeMemory() : arena.status()));
  const auto start = std::chrono::steady_clock::now();
  REPRISE_RETURN_IF_ERROR(agree("warm-up", core->WarmUp()));
  REPRISE_RETURN_IF_ERROR(agree("recording", core->Record()));
  if (core->inputs_.run.check_writes) REPRISE_RETURN_IF_ERROR(agree("checking the recording", core->CheckRecordings()));
  core->id_ = core->world().num_exchanges();
  for (const Schedule& schedule : core->plan().schedules) {
    core->launch_names_.push_back(absl::StrCat(PhaseOf(schedule.name, core->inputs_.name), " of session ", core->id_));
  }
  core->report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return core;
}

absl::Status SessionCore::TakeMemory() {
  const MemoryPlan& memory = plan().memory;
  const auto block = [this](Storage storage) -> std::shared_ptr<MemoryBlock>& {
    return blocks_[static_cast<int>(storage)];
  };
  block(Storage::kWeights) = parameters().memory(Storage::kWeights);
  block(Storage::kMasters) = parameters().memory(Storage::kMasters);
  block(Storage::kCommunicating) = arena_->communicating;
  block(Storage::kLocal) = arena_->local;
  for (const Storage storage : {Storage::kSession, Storage::kGradients, Storage::kHostVisible}) {
    REPRISE_ASSIGN_OR_RETURN(block(storage),
                             world().Allocate(MemoryKindOf(storage), memory.num_bytes[static_cast<int>(storage)]));
  }
  for (int s = 0; s < kNumStorages; ++s) {
    if (blocks_[s] == nullptr) continue;
    int64_t& total = IsTransient(static_cast<Storage>(s)) ? report_.transient_bytes : report_.persistent_bytes;
    total += blocks_[s]->num_bytes();
  }
  is_copied_.assign(num_local(), std::vector<bool>(plan().model.tensors().size(), false));
  REPRISE_RETURN_IF_ERROR(CheckExternalApart());
  Bind();
  return Reset();
}

absl::Status SessionCore::CheckExternalApart() const {
  for (const ExternalBuffer& buffer : inputs_.run.external) {
    for (int s = 0; s < kNumStorages; ++s) {
      for (int local = 0; local < num_local() && blocks_[s] != nullptr; ++local) {
        if (!Overlap(buffer.address, buffer.num_bytes, blocks_[s]->address(local), blocks_[s]->num_bytes())) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("external buffer of tensor ", Quoted(plan().model.tensor(buffer.tensor).spec.name),
                         " on rank ", buffer.rank, " overlaps the ", std::string(Name(static_cast<Storage>(s))),
                         " memory of the session; give it memory of your own"));
      }
    }
  }
  return absl::OkStatus();
}

void SessionCore::Bind() {
  if (inputs_.run.check_writes) bindings_->write_digests = std::make_shared<WriteDigests>();
  bindings_->ranks.assign(world().local_ranks().begin(), world().local_ranks().end());
  bindings_->Place(blocks_);
  for (int local = 0; local < num_local(); ++local) {
    for (const ExternalBuffer& buffer : inputs_.run.external) {
      if (buffer.rank != bindings_->ranks[local]) continue;
      bindings_->addresses[local][plan().tensor_buffers[buffer.tensor.value()].value.value()] =
          static_cast<std::byte*>(buffer.address);
    }
  }
}

absl::Status SessionCore::Reset() {
  REPRISE_RETURN_IF_ERROR(ZeroBlock(world(), blocks_[static_cast<int>(Storage::kSession)]));
  REPRISE_RETURN_IF_ERROR(ZeroBlock(world(), blocks_[static_cast<int>(Storage::kHostVisible)]));
  return WriteControl(inputs_.control);
}

absl::Status SessionCore::CheckWritesOf(Bindings& bindings) {
  bindings.check_writes = true;
  bindings.check_captured = inputs_.run.execution == Execution::kGraph;
  int64_t num_bytes = 0;
  std::vector<BufferId> buffers;
  for (const Schedule& schedule : plan().schedules) {
    for (const ScheduledCommand& command : schedule.commands) {
      for (const BufferUse& use : command.uses) {
        if (use.role != Role::kScratch) continue;
        buffers.push_back(use.buffer);
        num_bytes = std::max(num_bytes, use.num_bytes);
      }
    }
  }
  if (buffers.empty()) return absl::OkStatus();
  // In the arena other values lie behind scratch. Compute commands, which alone use it, run one by one.
  absl::StatusOr<std::shared_ptr<MemoryBlock>> taken = world().Allocate(MemoryKind::kLocal, num_bytes + kScratchGuard);
  // A model that leaves no room is not refused for the sake of a check.
  if (absl::IsResourceExhausted(taken.status())) return absl::OkStatus();
  REPRISE_ASSIGN_OR_RETURN(const std::shared_ptr<MemoryBlock> block, std::move(taken));
  bindings.scratch_guard = kScratchGuard;
  bindings.memory.push_back(block);
  for (int local = 0; local < num_local(); ++local) {
    for (const BufferId buffer : buffers) bindings.addresses[local][buffer.value()] = block->address(local);
  }
  return absl::OkStatus();
}

absl::Status SessionCore::FillInputs() {
  for (size_t t = 0; t < plan().model.tensors().size(); ++t) {
    const TensorSpec& spec = plan().model.tensors()[t].spec;
    const BufferId staging = plan().tensor_buffers[t].staging;
    const int64_t num_bytes = NumElements(spec.shape) * SizeOf(spec.dtype);
    if (!staging.valid() || !IsFloatingPoint(spec.dtype) || num_bytes == 0) continue;
    const int64_t positive = (NumElements(spec.shape) + 1) / 2 * SizeOf(spec.dtype);
    for (int64_t slot = 0; slot < plan().buffer(staging).num_bytes; slot += SlotStride(num_bytes)) {
      REPRISE_RETURN_IF_ERROR(Fill(staging, slot, positive, kPositive));
      REPRISE_RETURN_IF_ERROR(Fill(staging, slot + positive, num_bytes - positive, kNegative));
    }
  }
  return absl::OkStatus();
}

absl::Status SessionCore::ReplayAll(absl::FunctionRef<absl::Status(int schedule)> replay) {
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> saved, SaveState(States::kExternal));
  if (inputs_.run.check_writes) REPRISE_RETURN_IF_ERROR(FillInputs());
  for (int schedule : {plan().first, plan().body, plan().finish, plan().step, plan().step}) {
    if (schedule < 0) continue;
    if (schedule == plan().step) {
      // NaN: a step whose norm is not finite changes nothing.
      const BufferId partials = plan().norm_partials;
      REPRISE_RETURN_IF_ERROR(Fill(partials, 0, plan().buffer(partials).num_bytes, 0xff));
    }
    ++arena_->replays;
    REPRISE_RETURN_IF_ERROR(replay(schedule));
  }
  REPRISE_RETURN_IF_ERROR(world().Synchronize());
  REPRISE_RETURN_IF_ERROR(Reset());
  REPRISE_RETURN_IF_ERROR(RestoreState(States::kExternal, saved));
  return world().Synchronize();  // StageToRank does not come after fills
}

absl::Status SessionCore::WarmUp() {
  auto bindings = std::make_shared<Bindings>(*bindings_);
  if (inputs_.run.check_writes) REPRISE_RETURN_IF_ERROR(CheckWritesOf(*bindings));
  std::vector<std::unique_ptr<Executable>> eager(plan().schedules.size());
  return ReplayAll([&](int schedule) {
    if (eager[schedule] == nullptr) {
      REPRISE_ASSIGN_OR_RETURN(eager[schedule], world().Record(Execution::kEager, bindings, schedule));
    }
    return eager[schedule]->Replay();
  });
}

absl::Status SessionCore::CheckRecordings() {
  return ReplayAll([&](int schedule) { return executables_[schedule]->CheckReplay(); });
}

absl::Status SessionCore::Record() {
  for (size_t s = 0; s < plan().schedules.size(); ++s) {
    REPRISE_ASSIGN_OR_RETURN(executables_.emplace_back(),
                             world().Record(inputs_.run.execution, bindings_, static_cast<int>(s)));
    report_.graphs.push_back(executables_.back()->audit());
  }
  report_.memory = world().memory();
  report_.transport_reason = inputs_.transport_reason;
  return absl::OkStatus();
}

absl::Status SessionCore::ForEachState(States states,
                                       absl::FunctionRef<absl::Status(int local, BufferId buffer)> body) {
  for (int local = 0; local < num_local(); ++local) {
    for (size_t t = 0; t < plan().model.tensors().size(); ++t) {
      const Tensor& tensor = plan().model.tensors()[t];
      if (tensor.kind != TensorKind::kState || (states == States::kExternal && !tensor.spec.external)) continue;
      REPRISE_RETURN_IF_ERROR(body(local, plan().tensor_buffers[t].value));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> SessionCore::SaveState(States states) {
  std::vector<std::string> saved;
  REPRISE_RETURN_IF_ERROR(ForEachState(states, [&](int local, BufferId buffer) {
    std::string& bytes = saved.emplace_back(static_cast<size_t>(plan().buffer(buffer).num_bytes), '\0');
    return world().CopyToHost(local, bytes.data(), address(local, buffer), static_cast<int64_t>(bytes.size()));
  }));
  return saved;
}

absl::Status SessionCore::RestoreState(States states, const std::vector<std::string>& saved) {
  size_t next = 0;
  return ForEachState(states, [&](int local, BufferId buffer) {
    const std::string& bytes = saved[next++];
    return world().CopyToRank(local, address(local, buffer), bytes.data(), static_cast<int64_t>(bytes.size()));
  });
}

absl::StatusOr<std::string> SessionCore::FindFirstNonFinite(const ControlBlock& control) {
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> saved, SaveState(States::kAll));
  // A microbatch other than the first adds to what is there.
  for (const UnitBuffers& unit : plan().unit_buffers) {
    for (const BufferId buffer : unit.accumulators) {
      if (buffer.valid()) REPRISE_RETURN_IF_ERROR(Fill(buffer, 0, plan().buffer(buffer).num_bytes, 0));
    }
  }
  REPRISE_RETURN_IF_ERROR(WriteControl(control));
  auto bindings = std::make_shared<Bindings>(*bindings_);
  bindings->non_finite = std::make_shared<FirstNonFinite>();
  for (const int schedule : {plan().first, plan().finish}) {
    if (schedule < 0) continue;
    REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<Executable> eager,
                             world().Record(Execution::kEager, bindings, schedule));
    ++arena_->replays;
    const absl::Status replayed = Keep(eager->Replay());
    if (!replayed.ok()) world().TellFailure(replayed);
    REPRISE_RETURN_IF_ERROR(replayed);
    REPRISE_RETURN_IF_ERROR(Keep(world().Synchronize()));
    bindings->non_finite->EndReplay(plan().schedules[schedule]);
  }
  REPRISE_RETURN_IF_ERROR(Fill(plan().step_state, offsetof(StepState, loss_sum), sizeof(double), 0));
  REPRISE_RETURN_IF_ERROR(RestoreState(States::kAll, saved));
  return FirstOfAllRanks(*bindings->non_finite);
}

absl::StatusOr<std::string> SessionCore::FirstOfAllRanks(const FirstNonFinite& found) {
  std::vector<std::string> mine;
  for (int local = 0; local < num_local(); ++local) {
    const FirstNonFinite::Finding finding = found.Of(local);
    // Compared as text: the first command first, nothing last.
    mine.push_back(finding.place < 0 ? "~" : absl::StrFormat("%020d%s", finding.place, finding.text));
  }
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> all, world().ExchangeBytes("what is not finite first", mine));
  const auto first = std::min_element(all.begin(), all.end(), [](const std::string& a, const std::string& b) {
    return a.substr(0, 20) < b.substr(0, 20);
  });
  return first->front() == '~' ? std::string() : first->substr(20);
}

absl::Status SessionCore::Keep(absl::Status status) {
  if (status.ok() || !failed_.ok()) return status;
  failed_ = status;
  // Nobody can end the step of a training session that failed; others may go on in its arena.
  if (plan().step >= 0) arena_->open_step = -1;
  return status;
}

SessionCore::SessionCore(CoreInputs inputs)
    : inputs_(std::move(inputs)), bindings_(std::make_shared<Bindings>(std::move(inputs_.bindings))), number_([] {
        static std::atomic<int64_t> next = 0;
        return next.fetch_add(1, std::memory_order_relaxed);
      }()) {}

absl::Status SessionCore::CheckReader(absl::string_view what) const {
  const auto mine = launches.find(number_);
  if (mine == launches.end() || mine->second == last_replay_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what,
                   ": another thread has replayed since this one did, so that its results are gone; read them "
                   "before another thread's turn, or call ",
                   ReplayingCall(), " again"));
}

absl::Status SessionCore::Launch(int schedule) {
  const uint64_t key = static_cast<uint64_t>(id_) << 32 | static_cast<uint64_t>(schedule);
  REPRISE_RETURN_IF_ERROR(Keep(world().NoteLaunch(key, launch_names_[schedule])));
  last_replay_ = ++arena_->replays;
  launches[number_] = last_replay_;
  launched_ += plan().schedules[schedule].microbatches;
  absl::Status status = Keep(executables_[schedule]->Replay());
  if (!status.ok()) world().TellFailure(status);
  return status;
}

absl::Status SessionCore::WriteControl(const ControlBlock& control) {
  for (int local = 0; local < num_local(); ++local) {
    REPRISE_RETURN_IF_ERROR(
        Keep(world().CopyToRank(local, address(local, plan().control), &control, sizeof(ControlBlock))));
  }
  return absl::OkStatus();
}

absl::Status SessionCore::Fill(BufferId buffer, int64_t offset, int64_t num_bytes, uint8_t value) {
  for (int local = 0; local < num_local() && num_bytes > 0; ++local) {
    REPRISE_RETURN_IF_ERROR(Keep(world().FillBytes(local, address(local, buffer) + offset, value, num_bytes)));
  }
  return absl::OkStatus();
}

}  // namespace reprise::internal
