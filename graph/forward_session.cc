#include "reprise/graph/forward_session.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/model/quoted.h"
#include "graph/agree_on_plan.h"
#include "graph/in_use.h"
#include "graph/session_core.h"
#include "graph/train_session_state.h"
#include "reprise/core/planner.h"

namespace reprise {

using internal::Arena;
using internal::CoreInputs;
using internal::Quoted;
using internal::SessionCore;

struct ForwardSession::State {
  struct Variant {
    std::string name;
    std::unique_ptr<SessionCore> core;
    int64_t version = -1;  // of the parameters at its last replay
  };

  internal::Machine& world() const { return variants.front().core->world(); }
  // OK, or the first failure of any variant.
  absl::Status status() const {
    for (const Variant& variant : variants) REPRISE_RETURN_IF_ERROR(variant.core->CheckUsable());
    return absl::OkStatus();
  }
  // The variant, for a call that `what` names; refused after a failure.
  absl::StatusOr<Variant*> Find(absl::string_view what, int variant) {
    REPRISE_RETURN_IF_ERROR(status());
    return At(what, variant);
  }
  absl::StatusOr<Variant*> At(absl::string_view what, int variant) {
    if (variant >= 0 && variant < static_cast<int>(variants.size())) return &variants[variant];
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": no variant ", variant, "; the session has ", variants.size(), ", counted from 0"));
  }

  std::vector<Variant> variants;
};

namespace {

absl::Status CheckNames(const std::vector<ForwardVariant>& variants) {
  if (variants.empty()) return absl::InvalidArgumentError("ForwardSession::Create: no variants; give at least one");
  std::set<std::string> names;
  for (const ForwardVariant& variant : variants) {
    if (!variant.name.empty() && names.insert(variant.name).second) continue;
    return absl::InvalidArgumentError(absl::StrCat("ForwardSession::Create: variant name ", Quoted(variant.name),
                                                   variant.name.empty() ? " is empty" : " is used twice",
                                                   "; give each its own"));
  }
  return absl::OkStatus();
}

// A buffer serves the variants to which its tensor is external; the first variant reports one that serves none.
std::vector<ExternalBuffer> ExternalOf(const std::vector<ForwardVariant>& variants, size_t index,
                                       const std::vector<ExternalBuffer>& buffers) {
  const auto serves = [](const ForwardVariant& variant, const ExternalBuffer& buffer) {
    const int64_t t = buffer.tensor.value();
    return t >= 0 && t < static_cast<int64_t>(variant.model.tensors().size()) &&
           variant.model.tensors()[t].spec.external;
  };
  std::vector<ExternalBuffer> result;
  for (const ExternalBuffer& buffer : buffers) {
    const bool serves_none = std::none_of(variants.begin(), variants.end(),
                                          [&](const ForwardVariant& variant) { return serves(variant, buffer); });
    if (serves(variants[index], buffer) || (index == 0 && serves_none)) result.push_back(buffer);
  }
  return result;
}

absl::StatusOr<CoreInputs> Prepare(std::shared_ptr<ShardedParameters> parameters, ForwardVariant& variant,
                                   RunOptions run) {
  if (run.plan.microbatches_per_graph.value_or(1) != 1) {
    return absl::InvalidArgumentError(absl::StrCat("a ForwardSession replays one microbatch at a time, but ",
                                                   "microbatches_per_graph is ", *run.plan.microbatches_per_graph,
                                                   "; leave it unset"));
  }
  REPRISE_ASSIGN_OR_RETURN(CoreInputs inputs,
                           internal::PrepareCore(std::move(parameters), variant.model, std::move(variant.compute),
                                                 std::move(run), PlanForward));
  inputs.name = variant.name;
  return inputs;
}

// The arena of a training session, if every variant finds room in it.
absl::StatusOr<std::shared_ptr<Arena>> ShareArena(const std::shared_ptr<Arena>& arena,
                                                  const std::vector<CoreInputs>& variants) {
  std::string lacking;
  for (const auto& [storage, block, remedy] :
       {std::tuple(Storage::kCommunicating, arena->communicating,
                   "lower the variants' weight_slots, or raise the training session's"),
        std::tuple(Storage::kLocal, arena->local, "give that variant smaller activations and less scratch memory")}) {
    const auto needed = [s = static_cast<int>(storage)](const CoreInputs& variant) {
      return variant.plan().memory.num_bytes[s];
    };
    const CoreInputs& largest =
        *std::max_element(variants.begin(), variants.end(),
                          [&](const CoreInputs& a, const CoreInputs& b) { return needed(a) < needed(b); });
    if (needed(largest) <= block->num_bytes()) continue;
    absl::StrAppend(&lacking, "the training session's ", Name(storage), " arena has ", block->num_bytes(),
                    " bytes, but variant ", Quoted(largest.name), " needs ", needed(largest), "; ", remedy, "; ");
  }
  if (lacking.empty()) return arena;
  return absl::ResourceExhaustedError(absl::StrCat(lacking, "or leave share_arena null"));
}

absl::Status CheckShareArena(const ShardedParameters& parameters, const SessionCore& train) {
  if (train.parameters().world() != parameters.world()) {
    return absl::InvalidArgumentError("share_arena belongs to another World; use parameters of the same one");
  }
  if (train.arena()->open_step < 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("ForwardSession::Create: the training session whose arena is shared is in step ",
                   train.arena()->open_step, "; call EndStep or DiscardGradients first"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ForwardSession>> ForwardSession::Create(std::shared_ptr<ShardedParameters> parameters,
                                                                       std::vector<ForwardVariant> variants,
                                                                       RunOptions options, TrainSession* share_arena) {
  if (parameters == nullptr) {
    return absl::InvalidArgumentError("ForwardSession::Create: no parameters; make them by ShardedParameters::Create");
  }
  const std::shared_ptr<World> keep = parameters->world();  // the caller may have given its last reference
  internal::Machine& world = parameters->machine();
  REPRISE_ENTER(world, "ForwardSession::Create");
  const SessionCore* train = share_arena == nullptr ? nullptr : share_arena->state_->core.get();
  absl::Status status = CheckNames(variants);
  if (status.ok() && train != nullptr) status = CheckShareArena(*parameters, *train);
  if (!status.ok()) return world.Agree("planning", status, {});

  std::vector<CoreInputs> inputs;
  std::array<int64_t, kNumStorages> needed = {};
  for (size_t v = 0; v < variants.size(); ++v) {
    RunOptions run = options;
    run.external = ExternalOf(variants, v, options.external);
    absl::StatusOr<CoreInputs> prepared = Prepare(parameters, variants[v], std::move(run));
    REPRISE_RETURN_IF_ERROR(internal::AgreeOnPlan(world, prepared));
    for (int s = 0; s < kNumStorages; ++s) needed[s] = std::max(needed[s], prepared->plan().memory.num_bytes[s]);
    inputs.push_back(*std::move(prepared));
  }
  const absl::StatusOr<std::shared_ptr<Arena>> arena =
      train == nullptr ? internal::AllocateArena(world, needed) : ShareArena(train->arena(), inputs);
  auto state = std::make_unique<State>();
  for (CoreInputs& variant : inputs) {
    std::string name = variant.name;
    REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<SessionCore> core, SessionCore::Create(std::move(variant), arena));
    state->variants.push_back({std::move(name), std::move(core)});
  }
  return std::unique_ptr<ForwardSession>(new ForwardSession(std::move(state)));
}

ForwardSession::ForwardSession(std::unique_ptr<State> state) : state_(std::move(state)) {}
ForwardSession::~ForwardSession() = default;

absl::Status ForwardSession::CopyInputBytes(int rank, int variant, TensorId id, DType dtype, const void* values,
                                            int64_t num_elements) {
  REPRISE_ENTER(state_->world(), "CopyInput");
  REPRISE_ASSIGN_OR_RETURN(State::Variant* const v, state_->Find("CopyInput", variant));
  return v->core->CopyInput(rank, id, dtype, values, num_elements);
}

absl::Status ForwardSession::Replay(int variant) {
  REPRISE_ENTER(state_->world(), "Replay");
  REPRISE_ASSIGN_OR_RETURN(State::Variant* const v, state_->Find("Replay", variant));
  SessionCore& core = *v->core;
  if (const int64_t step = core.arena()->open_step; step >= 0) {
    return absl::FailedPreconditionError(absl::StrCat("Replay of variant ", Quoted(v->name),
                                                      ": the training session whose arena is shared is in step ", step,
                                                      "; call EndStep or DiscardGradients first"));
  }
  const std::string what = absl::StrCat("Replay of variant ", Quoted(v->name));
  REPRISE_RETURN_IF_ERROR(core.parameters().CheckSet(what));
  REPRISE_RETURN_IF_ERROR(core.CheckInputs(what));
  core.NextInputs();
  const int64_t version = core.parameters().version();
  const bool keeps_residents = core.LaunchedLast() && v->version == version;
  v->version = version;
  return core.Launch(keeps_residents ? core.plan().body : core.plan().first);
}

absl::StatusOr<int64_t> ForwardSession::CheckRead(int rank, int variant, TensorId id, DType dtype) {
  REPRISE_ENTER(state_->world(), "ReadOutput");
  REPRISE_ASSIGN_OR_RETURN(State::Variant* const v, state_->Find("ReadOutput", variant));
  return v->core->CheckRead("ReadOutput", rank, id, dtype, internal::TensorPart::kValue);
}

absl::Status ForwardSession::ReadBytes(int rank, int variant, TensorId id, void* values) {
  REPRISE_ENTER(state_->world(), "ReadOutput");
  return state_->variants[variant].core->ReadTensor(rank, id, internal::TensorPart::kValue, values);
}

absl::StatusOr<void*> ForwardSession::Address(int rank, int variant, TensorId id) const {
  REPRISE_ENTER(state_->world(), "Address");
  REPRISE_ASSIGN_OR_RETURN(State::Variant* const v, state_->Find("Address", variant));
  return v->core->Address(rank, id);
}

absl::Status ForwardSession::ClearState(int variant) {
  REPRISE_ENTER(state_->world(), "ClearState");
  REPRISE_ASSIGN_OR_RETURN(State::Variant* const v, state_->Find("ClearState", variant));
  const Plan& plan = v->core->plan();
  for (size_t t = 0; t < plan.model.tensors().size(); ++t) {
    if (plan.model.tensors()[t].kind != TensorKind::kState) continue;
    const BufferId buffer = plan.tensor_buffers[t].value;
    REPRISE_RETURN_IF_ERROR(v->core->Fill(buffer, 0, plan.buffer(buffer).num_bytes, 0));
  }
  return absl::OkStatus();
}

absl::Status ForwardSession::Synchronize() {
  REPRISE_ENTER(state_->world(), "Synchronize");
  REPRISE_RETURN_IF_ERROR(state_->status());
  SessionCore& core = *state_->variants.front().core;
  return core.Keep(core.world().Synchronize());
}

absl::StatusOr<const Plan*> ForwardSession::plan(int variant) const {
  REPRISE_ASSIGN_OR_RETURN(const State::Variant* const v, state_->At("plan", variant));
  return &v->core->plan();
}

}  // namespace reprise
