// Plans the model loss = sum of w * x for two ranks and, where the graph library is there, trains it for one step.
#include <iostream>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/core/model.h"
#include "reprise/core/plan.h"
#include "reprise/core/planner.h"
#include "reprise/core/status_macros.h"
#include "reprise/core/verifier.h"
#ifdef CONSUMER_HAS_GRAPH
#include "reprise/core/compute.h"
#include "reprise/graph/host_world.h"
#include "reprise/graph/train_session.h"
#endif
#ifdef CONSUMER_HAS_CUDA
#include "reprise/graph/cuda_world.h"
#endif

namespace {

constexpr int kSize = 5;

struct Dot {
  reprise::Model model;
  reprise::ParameterId w;
  reprise::TensorId x, loss;
  reprise::CallId call;
};

absl::StatusOr<Dot> BuildDot() {
  reprise::ModelBuilder builder;
  Dot dot;
  dot.w =
      builder.AddParameter(builder.AddUnit("unit"), {.name = "w", .shape = {kSize}, .dtype = reprise::DType::kFloat32});
  dot.x = builder.AddInput({.name = "x", .shape = {kSize}, .dtype = reprise::DType::kFloat32});
  dot.loss = builder.AddOutput({.name = "loss", .shape = {}, .dtype = reprise::DType::kFloat32});
  dot.call = builder.AddCall(
      {.name = "dot", .units = {reprise::UnitId(0)}, .inputs = {dot.x}, .outputs = {dot.loss}, .saved = {dot.x}});
  builder.SetLoss(dot.loss);
  REPRISE_ASSIGN_OR_RETURN(dot.model, builder.Build());
  return dot;
}

absl::Status Plan(const Dot& dot) {
  REPRISE_ASSIGN_OR_RETURN(const reprise::Plan plan, reprise::PlanTraining(dot.model, /*world_size=*/2, {}));
  REPRISE_RETURN_IF_ERROR(reprise::Verify(plan));
  REPRISE_ASSIGN_OR_RETURN(const reprise::PlanSummary summary, reprise::Summarize(plan, /*microbatches=*/1));
  if (summary.reduce_scatters != 1)
    return absl::InternalError("expected one reduce-scatter:\n" + reprise::ToText(plan));
  return absl::OkStatus();
}

#ifdef CONSUMER_HAS_GRAPH
absl::Status Train(const Dot& dot) {
  const auto forward = [&dot](reprise::ComputeContext& context) {
    const auto w = context.parameter<float>(dot.w);
    const auto x = context.input<float>(dot.x);
    const auto loss = context.output<float>(dot.loss);
    if (!context.status().ok()) return context.status();
    context.stream().host_queue().Enqueue([w, x, loss] {
      *loss.data = 0;
      for (int i = 0; i < kSize; ++i) *loss.data += w.data[i] * x.data[i];
    });
    return absl::OkStatus();
  };
  const auto backward = [&dot](reprise::ComputeContext& context) {
    const auto x = context.saved<const float>(dot.x);
    const auto scale = context.output_gradient<float>(dot.loss);
    const auto gradient = context.parameter_gradient<float>(dot.w);
    if (!context.status().ok()) return context.status();
    context.stream().host_queue().Enqueue([x, scale, gradient] {
      for (int i = 0; i < kSize; ++i) gradient.data[i] = *scale.data * x.data[i];
    });
    return absl::OkStatus();
  };
  const reprise::ComputeTable compute = {{dot.call, {.forward = forward, .backward = backward}}};
  REPRISE_ASSIGN_OR_RETURN(const auto world, reprise::CreateHostWorld({.size = 2}));
  REPRISE_ASSIGN_OR_RETURN(const auto parameters, reprise::ShardedParameters::Create(world, dot.model));
  REPRISE_RETURN_IF_ERROR(parameters->Write("w", std::vector<float>(kSize, 1)));
  REPRISE_ASSIGN_OR_RETURN(const auto session, reprise::TrainSession::Create(parameters, dot.model, compute, {}));
  REPRISE_RETURN_IF_ERROR(session->BeginStep({.learning_rate = 0.5f}));
  for (const int rank : world->local_ranks()) {
    REPRISE_RETURN_IF_ERROR(session->CopyInput(rank, dot.x, std::vector<float>(kSize, 1.0f + 2 * rank)));
  }
  REPRISE_RETURN_IF_ERROR(session->RunMicrobatch());
  REPRISE_ASSIGN_OR_RETURN(const std::vector<float> gradient, session->ReadGradient("w"));
  if (gradient != std::vector<float>(kSize, 2)) return absl::InternalError("expected the mean of 1 and 3 as gradient");
  return session->EndStep();
}
#else
absl::Status Train(const Dot&) { return absl::OkStatus(); }
#endif

#ifdef CONSUMER_HAS_CUDA
// A world of devices exists where there is a device, and is refused by name elsewhere.
absl::Status OpenDevice() {
  const absl::Status status = reprise::CreateCudaWorld({}).status();
  if (reprise::NumCudaDevices() > 0 ? status.ok() : absl::IsUnavailable(status)) return absl::OkStatus();
  return absl::InternalError("unexpected status of a world of devices: " + status.ToString());
}
#else
absl::Status OpenDevice() { return absl::OkStatus(); }
#endif

absl::Status Run() {
  REPRISE_ASSIGN_OR_RETURN(const Dot dot, BuildDot());
  REPRISE_RETURN_IF_ERROR(Plan(dot));
  REPRISE_RETURN_IF_ERROR(OpenDevice());
  return Train(dot);
}

}  // namespace

int main() {
  const absl::Status status = Run();
  std::cout << status.ToString() << "\n";
  return status.ok() ? 0 : 1;
}
