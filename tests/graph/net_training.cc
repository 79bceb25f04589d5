#include "tests/graph/net_training.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/core/status_macros.h"
#include "reprise/graph/forward_session.h"
#include "reprise/graph/sharded_parameters.h"

namespace reprise::testing {
namespace {

constexpr int64_t kEvaluation = 1 << 20;  // a step of no training

template <class T>
T OneOf(Random& random, std::initializer_list<T> values) {
  return values.begin()[random.Below(static_cast<int64_t>(values.size()))];
}

bool HasExternal(const Net& net) {
  for (const NetValue& value : net.values) {
    if (value.external) return true;
  }
  return false;
}

// What changes no bit.
void DrawPlan(const Net& net, Random& random, const std::vector<NetStep>& steps, PlanOptions& plan) {
  plan.weight_slots.reset();
  plan.gradient_slots.reset();
  plan.prefetch_depth.reset();
  const int fewest = net.units_of_a_call();
  if (fewest > 2 || random.Chance(70)) plan.weight_slots = fewest + static_cast<int>(random.Below(3));
  if (random.Chance(70)) plan.gradient_slots = static_cast<int>(1 + random.Below(4));
  if (random.Chance(70)) plan.prefetch_depth = static_cast<int>(random.Below(4));
  plan.residency = OneOf(random, {Residency::kKeep, Residency::kOff});
  plan.tail = Tail::kInGraph;
  // A carried tail needs a reduction in every graph.
  if (plan.reduce == Reduce::kEveryMicrobatch && random.Chance(40)) plan.tail = Tail::kCarried;
  int per_graph = static_cast<int>(1 + random.Below(3));
  for (const NetStep& step : steps) {
    if (step.values.microbatches % per_graph != 0) per_graph = 1;
  }
  plan.microbatches_per_graph = HasExternal(net) ? 1 : per_graph;
}

void DrawMechanics(const Net& net, Random& random, NetSetting& setting) {
  setting.world.order =
      OneOf(random, {ReplayOrder::kIssue, ReplayOrder::kAdversarial, ReplayOrder::kAdversarial, ReplayOrder::kThreads});
  setting.world.seed = random.Next();
  DrawPlan(net, random, setting.steps, setting.train.run.plan);
  setting.other_plan = setting.train.run.plan;
  DrawPlan(net, random, setting.steps, setting.other_plan);
  setting.train.run.execution = random.Chance(75) ? Execution::kGraph : Execution::kEager;
  setting.train.run.check_writes = random.Chance(50);
  setting.forward.plan.weight_slots = setting.train.run.plan.weight_slots;
  setting.forward.plan.residency = OneOf(random, {Residency::kKeep, Residency::kOff});
  setting.shares_arena = random.Chance(60);
  setting.marks_changed = random.Chance(15);
}

Optimizer DrawOptimizer(Random& random) {
  if (random.Chance(50)) {
    return Sgd{.momentum = OneOf(random, {0.0f, 0.5f, 0.9f}), .weight_decay = OneOf(random, {0.0f, 0.01f, 0.5f})};
  }
  return AdamW{.beta1 = OneOf(random, {0.9f, 0.5f, 0.0f}),
               .beta2 = OneOf(random, {0.999f, 0.9f, 0.99f}),
               .epsilon = OneOf(random, {1e-8f, 1e-4f, 0.1f}),
               .weight_decay = OneOf(random, {0.0f, 0.01f, 0.5f})};
}

int DrawParameter(const Net& net, Random& random) {
  return static_cast<int>(random.Below(static_cast<int64_t>(net.parameters.size())));
}

void DrawSteps(const Net& net, Random& random, NetSetting& setting) {
  const int64_t steps = 1 + random.Below(4);
  const int equal = static_cast<int>(1 + random.Below(3));
  const bool varies = random.Chance(25), two_sessions = random.Chance(12);
  for (int64_t s = 0; s < steps; ++s) {
    NetStep step;
    step.values.learning_rate = OneOf(random, {0.0f, 0.001f, 0.1f, 0.5f});
    step.values.microbatches = varies ? static_cast<int>(1 + random.Below(3)) : equal;
    step.values.gradient_divisor = OneOf(random, {0.0, 0.0, 1.0, 3.0, 17.5});
    if (random.Chance(10)) step.discard_after = static_cast<int>(random.Below(step.values.microbatches + 1));
    step.reads_gradients = random.Chance(75);
    if (random.Chance(30)) step.evaluations = static_cast<int>(1 + random.Below(2));
    if (step.evaluations > 1 && random.Chance(60)) step.writes_between = DrawParameter(net, random);
    step.infinite = random.Chance(3);
    if (step.infinite) step.reads_gradients = true;
    // After a discarded step weights are still resident.
    const bool discarded = s > 0 && setting.steps.back().discard_after >= 0;
    if (s > 0 && random.Chance(discarded ? 50 : 10)) step.writes = DrawParameter(net, random);
    if (two_sessions) step.session = static_cast<int>(random.Below(2));
    setting.forward_session = setting.forward_session || step.evaluations > 0;
    setting.steps.push_back(step);
  }
}

// ---- training ----

class NetTraining {
 public:
  NetTraining(const Net& net, const NetSetting& setting) : net_(net), setting_(setting), built_(Build(net)) {}

  absl::StatusOr<NetTrace> Run() {
    REPRISE_RETURN_IF_ERROR(Start());
    for (size_t s = 0; s < setting_.steps.size(); ++s) REPRISE_RETURN_IF_ERROR(RunStep(static_cast<int64_t>(s)));
    REPRISE_RETURN_IF_ERROR(world_->Synchronize());
    return std::move(trace_);
  }

 private:
  absl::Status Start() {
    REPRISE_ASSIGN_OR_RETURN(world_, CreateHostWorld(setting_.world));
    REPRISE_ASSIGN_OR_RETURN(parameters_, ShardedParameters::Create(world_, built_.model, setting_.master));
    REPRISE_ASSIGN_OR_RETURN(sessions_[0], NewSession(setting_.train.run.plan));
    for (const NetStep& step : setting_.steps) {
      if (step.session == 0 || sessions_[1] != nullptr) continue;
      REPRISE_ASSIGN_OR_RETURN(sessions_[1], NewSession(setting_.other_plan));
    }
    if (setting_.forward_session) REPRISE_RETURN_IF_ERROR(StartForward());
    if (net_.seed % 2 == 0) {
      for (size_t p = 0; p < net_.parameters.size(); ++p) REPRISE_RETURN_IF_ERROR(Write(static_cast<int>(p), 0));
    } else {
      REPRISE_RETURN_IF_ERROR(
          parameters_->Initialize([&](const ParameterSpec& spec, int64_t first, absl::Span<float> values) {
            const int p = built_.model.FindParameter(spec.name)->value();
            const std::vector<float> whole = NetParameterValues(net_, p, 0);
            std::copy_n(whole.begin() + first, values.size(), values.begin());
          }));
    }
    REPRISE_ASSIGN_OR_RETURN(trace_.initial, ReadParameters());
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<TrainSession>> NewSession(const PlanOptions& plan) {
    TrainOptions options = setting_.train;
    options.run.plan = plan;
    AddExternalBuffers(options.run);
    return TrainSession::Create(parameters_, built_.model, built_.compute, options);
  }

  void AddExternalBuffers(RunOptions& run) {
    for (size_t v = 0; v < net_.values.size(); ++v) {
      if (!net_.values[v].external) continue;
      for (const int rank : world_->local_ranks()) {
        external_.push_back({std::vector<double>(static_cast<size_t>(net_.elements(net_.values[v])) * 2 + 4), rank, v});
        // Aligned to 16 bytes.
        const uintptr_t address = (reinterpret_cast<uintptr_t>(external_.back().memory.data()) + 15) / 16 * 16;
        external_.back().address = reinterpret_cast<void*>(address);
        run.external.push_back({.rank = rank,
                                .tensor = built_.values[v],
                                .address = external_.back().address,
                                .num_bytes = net_.elements(net_.values[v]) * SizeOf(net_.values[v].dtype)});
      }
    }
  }

  absl::Status StartForward() {
    std::vector<ForwardVariant> variants;
    variants.push_back({.name = "evaluation", .model = built_.model, .compute = built_.compute});
    RunOptions options = setting_.forward;
    AddExternalBuffers(options);
    if (setting_.shares_arena) {
      auto session = ForwardSession::Create(parameters_, variants, options, sessions_[0].get());
      if (session.ok()) {
        forward_ = *std::move(session);
        trace_.shared_arena = true;
        return absl::OkStatus();
      }
      if (!absl::IsResourceExhausted(session.status())) return session.status();
    }
    REPRISE_ASSIGN_OR_RETURN(forward_, ForwardSession::Create(parameters_, std::move(variants), options));
    return absl::OkStatus();
  }

  absl::Status Write(int parameter, int64_t write) {
    return parameters_->Write(net_.parameters[parameter].name, NetParameterValues(net_, parameter, write));
  }
  absl::StatusOr<std::vector<std::vector<float>>> ReadParameters() {
    std::vector<std::vector<float>> all;
    for (const NetParameter& p : net_.parameters) {
      REPRISE_ASSIGN_OR_RETURN(all.emplace_back(), parameters_->Read(p.name));
    }
    return all;
  }

  template <class Session, class... Variant>
  absl::Status Copy(Session& session, int rank, const NetBatch& batch, Variant... variant) {
    for (size_t v = 0; v < net_.values.size(); ++v) {
      if (net_.values[v].kind != TensorKind::kInput) continue;
      const std::vector<float>& values = batch.values[v];
      const std::vector<BFloat16> narrow(values.begin(), values.end());
      const bool wide = net_.values[v].dtype == DType::kFloat32;
      if (net_.values[v].external) {
        for (const External& external : external_) {
          if (external.rank != rank || external.value != v) continue;
          if (wide) std::memcpy(external.address, values.data(), values.size() * sizeof(float));
          if (!wide) std::memcpy(external.address, narrow.data(), narrow.size() * sizeof(BFloat16));
        }
      } else if (wide) {
        REPRISE_RETURN_IF_ERROR(session.template CopyInput<float>(rank, variant..., built_.values[v], values));
      } else {
        REPRISE_RETURN_IF_ERROR(session.template CopyInput<BFloat16>(rank, variant..., built_.values[v], narrow));
      }
    }
    for (size_t i = 0; i < net_.integers.size(); ++i) {
      REPRISE_RETURN_IF_ERROR(
          session.template CopyInput<int32_t>(rank, variant..., built_.integers[i], batch.integers[i]));
    }
    return absl::OkStatus();
  }

  absl::Status RunStep(int64_t s) {
    const NetStep& step = setting_.steps[s];
    NetStepTrace& trace = trace_.steps.emplace_back();
    TrainSession& session = *sessions_[step.session];
    if (setting_.marks_changed) REPRISE_RETURN_IF_ERROR(session.MarkParametersChanged());
    if (step.writes >= 0) REPRISE_RETURN_IF_ERROR(Write(step.writes, WriteBefore(s)));
    REPRISE_ASSIGN_OR_RETURN(trace.before, ReadParameters());
    REPRISE_RETURN_IF_ERROR(session.BeginStep(step.values));
    const bool discards = step.discard_after >= 0;
    const int microbatches = discards ? step.discard_after : step.values.microbatches;
    for (int m = 0; m < microbatches; ++m) {
      for (const int rank : world_->local_ranks()) {
        NetBatch batch = MakeBatch(net_, s, m, rank);
        if (step.infinite && m == 0 && rank == world_->size() - 1) MakeInfinite(batch);
        REPRISE_RETURN_IF_ERROR(Copy(session, rank, batch));
      }
      REPRISE_RETURN_IF_ERROR(session.RunMicrobatch());
    }
    if (discards) {
      REPRISE_RETURN_IF_ERROR(session.DiscardGradients());
    } else {
      REPRISE_RETURN_IF_ERROR(ReadResults(session, step, trace));
      REPRISE_RETURN_IF_ERROR(session.EndStep());
      REPRISE_RETURN_IF_ERROR(session.Synchronize());
    }
    trace.metrics = session.PollMetrics();
    REPRISE_ASSIGN_OR_RETURN(trace.after, ReadParameters());
    for (int e = 0; e < step.evaluations; ++e) {
      if (e == 1 && step.writes_between >= 0) {
        REPRISE_RETURN_IF_ERROR(Write(step.writes_between, WriteBetween(s)));
      }
      REPRISE_RETURN_IF_ERROR(Evaluate(s, trace.evaluations.emplace_back()));
    }
    return absl::OkStatus();
  }

  void MakeInfinite(NetBatch& batch) const {
    for (std::vector<float>& values : batch.values) {
      if (!values.empty()) values[0] = std::numeric_limits<float>::infinity();
    }
  }

  absl::Status ReadResults(TrainSession& session, const NetStep& step, NetStepTrace& trace) {
    for (const NetParameter& p : net_.parameters) {
      std::vector<float>& gradient = trace.gradients.emplace_back();
      if (!step.reads_gradients || !p.spec.trainable) continue;
      REPRISE_ASSIGN_OR_RETURN(gradient, session.ReadGradient(p.name));
    }
    for (const int rank : world_->local_ranks()) {
      std::vector<std::vector<float>>& outputs = trace.outputs.emplace_back(net_.values.size());
      std::vector<std::vector<float>>& gradients = trace.input_gradients.emplace_back(net_.values.size());
      for (size_t v = 0; v < net_.values.size(); ++v) {
        const NetValue& value = net_.values[v];
        const TensorId id = built_.values[v];
        const bool wide = value.dtype == DType::kFloat32;
        const auto widen = [](const std::vector<BFloat16>& narrow, std::vector<float>& to) {
          for (const BFloat16 element : narrow) to.push_back(float(element));
        };
        if (value.kind == TensorKind::kOutput && wide) {
          REPRISE_ASSIGN_OR_RETURN(outputs[v], session.ReadOutput<float>(rank, id));
        } else if (value.kind == TensorKind::kOutput) {
          REPRISE_ASSIGN_OR_RETURN(const std::vector<BFloat16> narrow, session.ReadOutput<BFloat16>(rank, id));
          widen(narrow, outputs[v]);
        } else if (value.keep_gradient && wide) {
          REPRISE_ASSIGN_OR_RETURN(gradients[v], session.ReadInputGradient<float>(rank, id));
        } else if (value.keep_gradient) {
          REPRISE_ASSIGN_OR_RETURN(const std::vector<BFloat16> narrow, session.ReadInputGradient<BFloat16>(rank, id));
          widen(narrow, gradients[v]);
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status Evaluate(int64_t s, NetStepTrace::Evaluation& evaluation) {
    REPRISE_ASSIGN_OR_RETURN(evaluation.parameters, ReadParameters());
    for (const int rank : world_->local_ranks()) {
      REPRISE_RETURN_IF_ERROR(Copy(*forward_, rank, EvaluationBatch(net_, s, rank), 0));
    }
    REPRISE_RETURN_IF_ERROR(forward_->Replay(0));
    for (const int rank : world_->local_ranks()) {
      REPRISE_ASSIGN_OR_RETURN(const std::vector<float> loss,
                               forward_->ReadOutput<float>(rank, 0, built_.values[net_.loss]));
      evaluation.losses.push_back(loss[0]);
    }
    return absl::OkStatus();
  }

  struct External {
    std::vector<double> memory;
    int rank = 0;
    size_t value = 0;
    void* address = nullptr;
  };

  const Net& net_;
  const NetSetting& setting_;
  const BuiltNet built_;
  std::vector<External> external_;  // outlives the sessions
  std::shared_ptr<World> world_;
  std::shared_ptr<ShardedParameters> parameters_;
  std::unique_ptr<TrainSession> sessions_[2];
  std::unique_ptr<ForwardSession> forward_;
  NetTrace trace_;
};

std::string PlanToString(const PlanOptions& plan) {
  const auto number = [](std::optional<int> n) { return n.has_value() ? absl::StrCat(*n) : std::string("-"); };
  std::string text =
      absl::StrCat("weight slots ", number(plan.weight_slots), ", gradient slots ", number(plan.gradient_slots),
                   ", prefetch ", number(plan.prefetch_depth), ", per graph ", number(plan.microbatches_per_graph),
                   plan.residency == Residency::kKeep ? ", residency" : "",
                   plan.reduce == Reduce::kOncePerStep ? ", once per step" : "",
                   plan.tail == Tail::kCarried ? ", carried" : "", ", ", std::string(reprise::Name(plan.transport)));
  for (const TransportChoice& choice : plan.transport_choices) {
    absl::StrAppend(&text, " from ", choice.unit_bytes, " ", std::string(reprise::Name(choice.transport)));
  }
  return absl::StrCat(text, ", wire ", std::string(reprise::Name(plan.wire)));
}

}  // namespace

NetSetting RandomNetSetting(const Net& net, Random& random) {
  NetSetting setting;
  setting.world.size = static_cast<int>(1 + random.Below(6));
  setting.master = random.Chance(75) ? DType::kFloat32 : DType::kBFloat16;
  TrainOptions& train = setting.train;
  PlanOptions& plan = train.run.plan;
  plan.reduce = random.Chance(30) ? Reduce::kOncePerStep : Reduce::kEveryMicrobatch;
  plan.transport =
      OneOf(random, {Transport::kDefault, Transport::kSymmetric, Transport::kCopyEngine, Transport::kAuto});
  if (plan.transport == Transport::kAuto && random.Chance(70)) {
    const int64_t bytes = random.Below(600);
    plan.transport_choices = {{bytes, Transport::kCopyEngine}, {bytes + 600, Transport::kSymmetric}};
  }
  plan.wire = OneOf(random, {DType::kFloat32, DType::kBFloat16});
  train.optimizer = DrawOptimizer(random);
  if (random.Chance(35)) train.clip_norm = OneOf(random, {0.01f, 0.5f, 4.0f});
  train.loss_scale = OneOf(random, {1.0f, 1.0f, 0x1p-5f, 0x1p10f});
  DrawSteps(net, random, setting);
  DrawMechanics(net, random, setting);
  return setting;
}

NetSetting WithTheSameBits(const Net& net, const NetSetting& setting, Random& random) {
  NetSetting other = setting;
  PlanOptions& plan = other.train.run.plan;
  if (plan.transport == Transport::kSymmetric || plan.transport == Transport::kCopyEngine) {
    plan.transport = OneOf(random, {Transport::kSymmetric, Transport::kCopyEngine});
  }
  DrawMechanics(net, random, other);
  return other;
}

std::string NetSetting::ToString() const {
  constexpr const char* kOrders[] = {"issue", "adversarial", "threads"};
  std::string text = absl::StrCat(
      "world size ", world.size, ", ", kOrders[static_cast<int>(world.order)], " ", world.seed, ", masters ",
      std::string(Name(master)), train.run.execution == Execution::kEager ? ", eager" : "",
      train.run.check_writes ? ", check_writes" : "", marks_changed ? ", marks changed" : "", ", clip ",
      train.clip_norm.value_or(0), ", loss scale ", train.loss_scale, "\n  ", PlanToString(train.run.plan));
  const auto other = [](const NetStep& step) { return step.session == 1; };
  if (std::any_of(steps.begin(), steps.end(), other)) {
    absl::StrAppend(&text, "\n  other session: ", PlanToString(other_plan));
  }
  text += "\n  ";
  if (const AdamW* adamw = std::get_if<AdamW>(&train.optimizer)) {
    absl::StrAppend(&text, "AdamW ", adamw->beta1, " ", adamw->beta2, " ", adamw->epsilon, " ", adamw->weight_decay);
  } else {
    const Sgd& sgd = std::get<Sgd>(train.optimizer);
    absl::StrAppend(&text, "SGD ", sgd.momentum, " ", sgd.weight_decay);
  }
  for (const NetStep& step : steps) {
    absl::StrAppend(&text, "; rate ", step.values.learning_rate, " microbatches ", step.values.microbatches,
                    " divisor ", step.values.gradient_divisor,
                    step.discard_after >= 0 ? absl::StrCat(" discard after ", step.discard_after) : "",
                    step.evaluations > 0 ? absl::StrCat(" evaluations ", step.evaluations) : "",
                    step.writes_between >= 0 ? absl::StrCat(" p", step.writes_between, " written between") : "",
                    step.writes >= 0 ? absl::StrCat(" writes p", step.writes) : "", step.infinite ? " infinite" : "",
                    step.session == 1 ? " other session" : "");
  }
  return text;
}

std::string NetTrace::Bytes() const {
  std::string bytes;
  const auto add = [&](const std::vector<float>& values) {
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  };
  for (const std::vector<float>& values : initial) add(values);
  for (const NetStepTrace& step : steps) {
    for (const auto& list : {step.before, step.gradients, step.after}) {
      for (const std::vector<float>& values : list) add(values);
    }
    for (const auto& by_rank : {step.outputs, step.input_gradients}) {
      for (const auto& list : by_rank) {
        for (const std::vector<float>& values : list) add(values);
      }
    }
    for (const StepMetrics& m : step.metrics) {
      add({static_cast<float>(m.step), m.loss, m.gradient_norm, m.loss_scale, m.skipped ? 1.0f : 0.0f});
    }
    for (const NetStepTrace::Evaluation& evaluation : step.evaluations) add(evaluation.losses);
  }
  return bytes;
}

std::vector<float> NetParameterValues(const Net& net, int parameter, int64_t write) {
  const NetParameter& p = net.parameters[parameter];
  Random random((net.seed * 1024 + static_cast<uint64_t>(parameter)) * 64 + static_cast<uint64_t>(write));
  std::vector<float> values;
  for (int64_t i = 0; i < NumElements(p.spec.shape); ++i) {
    const float share = static_cast<float>(random.Below(257) - 128) / 128;
    values.push_back(float(BFloat16(p.mean + p.deviation * share)));
  }
  return values;
}

NetBatch EvaluationBatch(const Net& net, int64_t step, int rank) { return MakeBatch(net, kEvaluation + step, 0, rank); }

absl::StatusOr<NetTrace> Train(const Net& net, const NetSetting& setting) { return NetTraining(net, setting).Run(); }

}  // namespace reprise::testing
