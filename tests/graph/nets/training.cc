#include "tests/graph/nets/training.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "reprise/core/status_macros.h"
#include "reprise/graph/forward_session.h"
#include "reprise/graph/sharded_parameters.h"
#include "tests/graph/nets/net_model.h"

namespace reprise::testing {
namespace {

constexpr int64_t kEvaluation = 1 << 20;  // a step of no training

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
    return parameters_->Write(net_.parameters[parameter].spec.name, NetParameterValues(net_, parameter, write));
  }
  absl::StatusOr<std::vector<std::vector<float>>> ReadParameters() {
    std::vector<std::vector<float>> all;
    for (const NetParameter& p : net_.parameters) {
      REPRISE_ASSIGN_OR_RETURN(all.emplace_back(), parameters_->Read(p.spec.name));
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
        REPRISE_RETURN_IF_ERROR(session.CopyInput(rank, variant..., built_.values[v], values));
      } else {
        REPRISE_RETURN_IF_ERROR(session.CopyInput(rank, variant..., built_.values[v], narrow));
      }
    }
    for (size_t i = 0; i < net_.integers.size(); ++i) {
      REPRISE_RETURN_IF_ERROR(session.CopyInput(rank, variant..., built_.integers[i], batch.integers[i]));
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
    if (setting_.asks && step.infinite && !discards) {
      REPRISE_ASSIGN_OR_RETURN(trace.non_finite, session.FindNonFinite());
    }
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
      REPRISE_ASSIGN_OR_RETURN(gradient, session.ReadGradient(p.spec.name));
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

}  // namespace

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
