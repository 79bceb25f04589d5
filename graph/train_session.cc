#include "reprise/graph/train_session.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/model/hasher.h"
#include "core/model/quoted.h"
#include "graph/agree_on_plan.h"
#include "graph/gather_parameter.h"
#include "graph/in_use.h"
#include "graph/session_checks.h"
#include "graph/session_core.h"
#include "graph/train_session_state.h"
#include "reprise/core/planner.h"

namespace reprise {
namespace {

using internal::AgreedValue;
using internal::CoreInputs;
using internal::SessionCore;

absl::StatusOr<CoreInputs> Prepare(std::shared_ptr<ShardedParameters> parameters, const Model& model,
                                   ComputeTable compute, TrainOptions options) {
  REPRISE_RETURN_IF_ERROR(internal::CheckTrainOptions(options));
  options.run.plan.optimizer_states = OptimizerStates(options.optimizer);
  REPRISE_ASSIGN_OR_RETURN(CoreInputs inputs, internal::PrepareCore(std::move(parameters), model, std::move(compute),
                                                                    std::move(options.run), PlanTraining));
  inputs.bindings.optimizer = options.optimizer;
  inputs.bindings.clip_norm = options.clip_norm.value_or(0.0f);
  inputs.control = {.loss_scale = options.loss_scale, .seed = options.seed};
  return inputs;
}

// Steps written to the ring, whose entries may be read.
int64_t Published(const MetricsRing& ring) {
  return std::atomic_ref(const_cast<int64_t&>(ring.published)).load(std::memory_order_acquire);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainSession>> TrainSession::Create(std::shared_ptr<ShardedParameters> parameters,
                                                                   const Model& model, ComputeTable compute,
                                                                   TrainOptions options) {
  if (parameters == nullptr) {
    return absl::InvalidArgumentError("TrainSession::Create: no parameters; make them by ShardedParameters::Create");
  }
  const std::shared_ptr<World> keep = parameters->world();  // the caller may have given its last reference
  internal::Machine& world = parameters->machine();
  REPRISE_ENTER(world, "TrainSession::Create");
  auto state = std::make_unique<State>();
  absl::StatusOr<CoreInputs> inputs = Prepare(std::move(parameters), model, std::move(compute), std::move(options));
  REPRISE_RETURN_IF_ERROR(internal::AgreeOnPlan(world, inputs));
  const absl::StatusOr<std::shared_ptr<internal::Arena>> arena =
      internal::AllocateArena(world, inputs->plan().memory.num_bytes);
  REPRISE_ASSIGN_OR_RETURN(state->core, SessionCore::Create(*std::move(inputs), arena));
  state->core->parameters().WatchStep(std::shared_ptr<const int64_t>(*arena, &(*arena)->open_step));
  return std::unique_ptr<TrainSession>(new TrainSession(std::move(state)));
}

TrainSession::TrainSession(std::unique_ptr<State> state) : state_(std::move(state)) {}
TrainSession::~TrainSession() = default;

// ---- the step ----

std::string TrainSession::State::Progress(absl::string_view call) const {
  return absl::StrCat(call, ": ", run, " of ", values.microbatches, " microbatches of step ", steps, " have run");
}

absl::Status TrainSession::State::RequireStep(absl::string_view call) const {
  REPRISE_RETURN_IF_ERROR(core->CheckUsable());
  if (core->arena()->open_step < 0) {
    return absl::FailedPreconditionError(absl::StrCat(call, ": no step is open; call BeginStep first"));
  }
  REPRISE_RETURN_IF_ERROR(RequireThread(call));
  if (core->parameters().version() != version) {
    return absl::FailedPreconditionError(
        absl::StrCat(call, ": parameters were changed during step ", steps, " (version ", core->parameters().version(),
                     ", the step began with ", version,
                     "), so that its gradients are mixed; call DiscardGradients and begin again"));
  }
  return absl::OkStatus();
}

absl::Status TrainSession::State::RequireThread(absl::string_view call) const {
  if (core->arena()->open_step < 0 || thread == std::this_thread::get_id()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(call, ": step ", steps,
                                                    " was begun by another thread; run a step in one thread, or call "
                                                    "DiscardGradients and begin again"));
}

absl::Status TrainSession::State::RequireNoStep(absl::string_view call) const {
  REPRISE_RETURN_IF_ERROR(core->CheckUsable());
  if (core->arena()->open_step < 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(Progress(call), "; call EndStep or DiscardGradients first"));
}

absl::Status TrainSession::State::Finish() {
  const int finish = core->plan().finish;
  if (finish < 0 || std::exchange(is_finished, true)) return absl::OkStatus();
  return core->Launch(finish);
}

std::vector<AgreedValue> TrainSession::State::AgreedValues(const StepValues& begun) const {
  return {
      AgreedValue::Integer("session", core->id()).DecidingLaunches(),
      AgreedValue::Integer("step", steps),
      AgreedValue::Real("learning_rate", begun.learning_rate.value_or(0)),
      AgreedValue::Integer("microbatches", begun.microbatches).DecidingLaunches(),
      AgreedValue::Real("gradient_divisor", begun.gradient_divisor),
      AgreedValue::Real("loss_scale", core->first_control().loss_scale),
      AgreedValue::Integer("version of the parameters", core->parameters().version()),
      AgreedValue::Hash("plan", core->plan().fingerprint.high).DecidingLaunches(),
  };
}

uint64_t TrainSession::State::HashOf(absl::Span<const AgreedValue> values) const {
  internal::Hasher hasher;
  for (const AgreedValue& value : values) hasher.Add(value.bits);
  return hasher.Finish().high;
}

const MetricsRing& TrainSession::State::ring() const {
  return *reinterpret_cast<const MetricsRing*>(core->address(/*local=*/0, core->plan().metrics));
}

absl::Status TrainSession::State::CheckPublished() {
  const int64_t published = Published(ring());
  for (checked = std::max(checked, steps - kMetricsRingSize); checked < published; ++checked) {
    const StepMetrics& metrics = ring().entries[checked % kMetricsRingSize];
    if (metrics.skip_reason != SkipReason::kRanksDiffer) continue;
    REPRISE_RETURN_IF_ERROR(core->Keep(core->world().CheckResults()));
    core->Keep(absl::FailedPreconditionError(
                   absl::StrCat("step ", metrics.step,
                                " made no update: its ranks gave different steps to the norm of the gradient; look for "
                                "an error of another rank, and make the same calls on every rank")))
        .IgnoreError();
  }
  return core->status();
}

void TrainSession::State::CloseStep() {
  core->arena()->open_step = -1;
  core->DropInputs();
}

absl::Status TrainSession::BeginStep(const StepValues& values) {
  REPRISE_ENTER(state_->core->world(), "BeginStep");
  REPRISE_RETURN_IF_ERROR(state_->RequireNoStep("BeginStep"));
  SessionCore& core = *state_->core;
  absl::Status refusal = internal::CheckStepValues(values, core.plan(), core.first_control().loss_scale);
  if (refusal.ok()) refusal = core.parameters().CheckSet("BeginStep");
  const std::string what = absl::StrCat("BeginStep of step ", state_->steps);
  const std::vector<AgreedValue> agreed = state_->AgreedValues(values);
  if (!refusal.ok()) return core.world().AgreeOn(what, refusal, agreed);
  const absl::StatusOr<int64_t> ticket = core.world().Announce(what, absl::OkStatus(), agreed);
  REPRISE_RETURN_IF_ERROR(core.Keep(ticket.status()));
  state_->ticket = *ticket;
  ControlBlock control = core.first_control();
  control.learning_rate = *values.learning_rate;
  control.gradient_divisor = internal::GradientDivisor(values, core.plan().world_size());
  control.microbatches = values.microbatches;
  control.step = state_->steps;
  control.agreed = state_->HashOf(agreed);
  control.earlier_microbatches = core.launched();
  REPRISE_RETURN_IF_ERROR(core.WriteControl(control));
  state_->control = control;
  core.arena()->open_step = state_->steps;
  state_->thread = std::this_thread::get_id();
  state_->values = values;
  state_->version = core.parameters().version();
  state_->run = 0;
  state_->is_finished = false;
  return absl::OkStatus();
}

absl::Status TrainSession::CopyInputBytes(int rank, TensorId id, DType dtype, const void* values,
                                          int64_t num_elements) {
  REPRISE_ENTER(state_->core->world(), "CopyInput");
  REPRISE_RETURN_IF_ERROR(state_->RequireStep("CopyInput"));
  if (state_->run == state_->values.microbatches) {
    return absl::FailedPreconditionError(absl::StrCat(state_->Progress("CopyInput"), "; call EndStep"));
  }
  return state_->core->CopyInput(rank, id, dtype, values, num_elements);
}

absl::Status TrainSession::RunMicrobatch() {
  REPRISE_ENTER(state_->core->world(), "RunMicrobatch");
  REPRISE_RETURN_IF_ERROR(state_->RequireStep("RunMicrobatch"));
  if (state_->run == state_->values.microbatches) {
    return absl::FailedPreconditionError(absl::StrCat(state_->Progress("RunMicrobatch"), "; call EndStep"));
  }
  SessionCore& core = *state_->core;
  // Other values that differ are found by EndStep: until then all ranks launch the same, so that no device waits in
  // vain.
  REPRISE_RETURN_IF_ERROR(core.Keep(core.world().Progress(state_->ticket)));
  REPRISE_RETURN_IF_ERROR(
      core.CheckInputs(absl::StrCat("RunMicrobatch: microbatch ", state_->run, " of step ", state_->steps)));
  core.NextInputs();
  const int per_graph = core.plan().options.microbatches_per_graph.value_or(1);
  if (++state_->run % per_graph != 0) return absl::OkStatus();
  ControlBlock& replayed = state_->replayed.emplace(state_->control);
  replayed.next_microbatch = state_->run - per_graph;
  return core.Launch(state_->run == per_graph ? core.plan().first : core.plan().body);
}

absl::Status TrainSession::EndStep() {
  REPRISE_ENTER(state_->core->world(), "EndStep");
  REPRISE_RETURN_IF_ERROR(state_->RequireStep("EndStep"));
  if (state_->run < state_->values.microbatches) {
    return absl::FailedPreconditionError(
        absl::StrCat(state_->Progress("EndStep"), "; call RunMicrobatch for the rest, or DiscardGradients"));
  }
  SessionCore& core = *state_->core;
  REPRISE_RETURN_IF_ERROR(state_->CheckPublished());
  REPRISE_RETURN_IF_ERROR(core.Keep(core.world().Announced(state_->ticket)));
  REPRISE_RETURN_IF_ERROR(state_->Finish());
  core.parameters().MarkChanged();  // even by a replay that fails
  REPRISE_RETURN_IF_ERROR(core.Launch(core.plan().step));
  ++state_->steps;
  state_->CloseStep();
  return absl::OkStatus();
}

absl::Status TrainSession::DiscardGradients() {
  REPRISE_ENTER(state_->core->world(), "DiscardGradients");
  SessionCore& core = *state_->core;
  REPRISE_RETURN_IF_ERROR(core.CheckUsable());
  if (core.arena()->open_step < 0) {
    return absl::FailedPreconditionError("DiscardGradients: no step is open, so there is nothing to discard");
  }
  REPRISE_RETURN_IF_ERROR(core.Keep(core.world().Announced(state_->ticket)));
  REPRISE_RETURN_IF_ERROR(
      core.Keep(core.world().AgreeOn(absl::StrCat("DiscardGradients of step ", state_->steps), absl::OkStatus(),
                                     {AgreedValue::Integer("number of the session", core.id())})));
  // The next step's first microbatch assigns the accumulators; only the sum of losses has no such start.
  REPRISE_RETURN_IF_ERROR(core.Fill(core.plan().step_state, offsetof(StepState, loss_sum), sizeof(double), 0));
  state_->CloseStep();
  return absl::OkStatus();
}

absl::Status TrainSession::MarkParametersChanged() {
  REPRISE_ENTER(state_->core->world(), "MarkParametersChanged");
  REPRISE_RETURN_IF_ERROR(state_->RequireNoStep("MarkParametersChanged"));
  SessionCore& core = *state_->core;
  REPRISE_RETURN_IF_ERROR(core.Keep(core.world().AgreeOn("MarkParametersChanged", absl::OkStatus(),
                                                         {AgreedValue::Integer("number of the session", core.id())})));
  core.parameters().MarkChanged();
  return absl::OkStatus();
}

// ---- results ----

std::vector<StepMetrics> TrainSession::PollMetrics() {
  SessionCore& core = *state_->core;
  const internal::Entry entry(core.world(), "PollMetrics");
  if (!entry.ok()) return {};
  const MetricsRing& ring = state_->ring();
  const int64_t published = Published(ring);
  state_->CheckPublished().IgnoreError();
  // A launched step may be writing its entry at this moment, so the entry one round before it is not read.
  std::vector<StepMetrics> metrics;
  for (int64_t s = std::max(state_->polled, state_->steps - kMetricsRingSize); s < published; ++s) {
    metrics.push_back(ring.entries[s % kMetricsRingSize]);
  }
  if (metrics.empty() || !core.Keep(core.world().CheckResults()).ok()) return {};
  state_->polled = std::max(state_->polled, published);
  return metrics;
}

absl::StatusOr<std::string> TrainSession::FindNonFinite() {
  REPRISE_ENTER(state_->core->world(), "FindNonFinite");
  REPRISE_RETURN_IF_ERROR(state_->RequireNoStep("FindNonFinite"));
  if (!state_->replayed.has_value()) {
    return absl::FailedPreconditionError("FindNonFinite: no microbatch has run; call it after a step");
  }
  SessionCore& core = *state_->core;
  const int64_t per_graph = core.plan().options.microbatches_per_graph.value_or(1);
  const ControlBlock& control = *state_->replayed;
  REPRISE_ASSIGN_OR_RETURN(const std::string found, core.FindFirstNonFinite(control));
  const int64_t first = control.next_microbatch;
  const std::string graph = absl::StrCat("step ", control.step, ", microbatch ", first,
                                         per_graph > 1 ? absl::StrCat(" to ", first + per_graph - 1) : "", ": ");
  if (!found.empty()) return absl::StrCat(graph, found);
  constexpr absl::string_view kSums = "the sum over its microbatches, or the norm of the divided gradient was not";
  return absl::StrCat(
      graph, "every value is finite with the parameters as they are now; if the step was skipped, ",
      first == 0 ? absl::StrCat(kSums, "; lower the loss or loss_scale")
                 : absl::StrCat("an earlier microbatch of it, ", kSums,
                                "; to look at an earlier one, begin a step again, run its microbatches up to that one, "
                                "and call DiscardGradients, then FindNonFinite"));
}

absl::Status TrainSession::Synchronize() {
  REPRISE_ENTER(state_->core->world(), "Synchronize");
  REPRISE_RETURN_IF_ERROR(state_->core->CheckUsable());
  REPRISE_RETURN_IF_ERROR(state_->core->Keep(state_->core->world().Synchronize()));
  return state_->CheckPublished();
}

absl::StatusOr<std::vector<float>> TrainSession::ReadGradient(absl::string_view parameter) {
  REPRISE_ENTER(state_->core->world(), "ReadGradient");
  REPRISE_RETURN_IF_ERROR(state_->RequireStep("ReadGradient"));
  SessionCore& core = *state_->core;
  const Plan& plan = core.plan();
  const std::string what = absl::StrCat("ReadGradient of parameter ", internal::Quoted(parameter));
  const absl::StatusOr<ParameterId> found = plan.model.FindParameter(parameter);
  if (!found.ok()) return internal::RefuseToGather(core.world(), what, found.status());
  const ParameterId id = *found;
  if (!plan.model.parameter(id).spec.trainable) {
    return internal::RefuseToGather(
        core.world(), what,
        absl::InvalidArgumentError(
            absl::StrCat("ReadGradient: parameter ", internal::Quoted(parameter), " is frozen and has no gradient")));
  }
  if (state_->run < state_->values.microbatches) {
    return absl::FailedPreconditionError(
        absl::StrCat(state_->Progress("ReadGradient"), "; call RunMicrobatch for the rest first"));
  }
  REPRISE_RETURN_IF_ERROR(state_->Finish());
  const UnitBuffers& buffers = plan.unit_buffers[plan.model.parameter(id).unit.value()];
  std::vector<const std::byte*> shards;
  for (int local = 0; local < core.num_local(); ++local) {
    shards.push_back(core.address(local, buffers.accumulators[plan.layout.parameters[id.value()].group]));
  }
  absl::StatusOr<std::vector<float>> gradient =
      internal::GatherParameter(core.world(), what, absl::StrCat("the session of number ", core.id()), plan.model,
                                plan.layout, id, kAccumulateDType, shards);
  REPRISE_RETURN_IF_ERROR(core.Keep(gradient.status()));
  const float divisor = internal::GradientDivisor(state_->values, plan.world_size()) * core.first_control().loss_scale;
  for (float& element : *gradient) element /= divisor;
  return gradient;
}

absl::StatusOr<int64_t> TrainSession::CheckRead(int rank, TensorId id, DType dtype, TensorPart part) {
  const char* const call = part == TensorPart::kValue ? "ReadOutput" : "ReadInputGradient";
  REPRISE_ENTER(state_->core->world(), call);
  REPRISE_RETURN_IF_ERROR(state_->core->CheckUsable());
  REPRISE_RETURN_IF_ERROR(state_->RequireThread(call));
  return state_->core->CheckRead(call, rank, id, dtype, part);
}

absl::Status TrainSession::ReadBytes(int rank, TensorId id, TensorPart part, void* values) {
  REPRISE_ENTER(state_->core->world(), "reading a tensor");
  REPRISE_RETURN_IF_ERROR(state_->RequireThread("reading a tensor"));
  return state_->core->ReadTensor(rank, id, part, values);
}

const Plan& TrainSession::plan() const { return state_->core->plan(); }
const SessionReport& TrainSession::report() const { return state_->core->report(); }

}  // namespace reprise
