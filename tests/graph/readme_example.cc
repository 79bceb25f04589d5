#include <iostream>
#include <string>
#include <vector>

#include "reprise/core/status_macros.h"
#include "reprise/graph/host_world.h"
#include "reprise/graph/train_session.h"
#include "reprise/kernels/cross_entropy.h"
#include "reprise/kernels/linear.h"

using namespace reprise;

absl::Status Train(std::shared_ptr<World> world) {
  ModelBuilder builder;  // what one microbatch computes ...
  ComputeTable compute;  // ... and the code that computes it
  const TensorId features = builder.AddInput({"features", {32, 64}, DType::kFloat32});
  const TensorId labels = builder.AddInput({"labels", {32}, DType::kInt32});
  const TensorId loss = builder.AddOutput({"loss", {}, DType::kFloat32});
  TensorId x = features;
  for (const std::string name : {"linear0", "linear1", "linear2"}) {  // units: gathered one ahead, reduced when ready
    const UnitId unit = builder.AddUnit(name);
    const ParameterId w = builder.AddParameter(unit, {name + ".weight", {64, 64}, DType::kFloat32});
    const TensorId y = builder.AddActivation({name + ".y", {32, 64}, DType::kFloat32});
    compute[builder.AddCall({.name = name, .units = {unit}, .inputs = {x}, .outputs = {y}, .saved = {x}})] = {
        [=](ComputeContext& c) {
          return kernels::Linear(c.stream(), c.input<float>(x), c.parameter<float>(w), c.output<float>(y));
        },
        [=](ComputeContext& c) {
          return kernels::LinearBackward(c.stream(), c.output_gradient<float>(y), c.saved<const float>(x),
                                         c.parameter<float>(w), c.input_gradient<float>(x),
                                         c.parameter_gradient<float>(w));
        }};
    x = y;
  }
  compute[builder.AddCall({.name = "loss", .inputs = {x, labels}, .outputs = {loss}, .saved = {x, labels}})] = {
      [=](ComputeContext& c) {
        return kernels::CrossEntropy(c.stream(), c.input<float>(x), c.input<int32_t>(labels), c.output<float>(loss));
      },
      [=](ComputeContext& c) {
        return kernels::CrossEntropyBackward(c.stream(), c.output_gradient<float>(loss), c.saved<const float>(x),
                                             c.saved<const int32_t>(labels), c.input_gradient<float>(x));
      }};
  builder.SetLoss(loss);
  REPRISE_ASSIGN_OR_RETURN(const Model model, builder.Build());
  REPRISE_ASSIGN_OR_RETURN(auto parameters, ShardedParameters::Create(world, model));
  REPRISE_RETURN_IF_ERROR(parameters->Initialize(Normal(/*seed=*/1, /*stddev=*/0.1f)));
  REPRISE_ASSIGN_OR_RETURN(auto session, TrainSession::Create(parameters, model, compute, {.optimizer = AdamW{}}));
  for (int step = 0; step < 100; ++step) {
    REPRISE_RETURN_IF_ERROR(session->BeginStep({.learning_rate = 1e-2f, .microbatches = 2}));
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      for (int rank : world->local_ranks()) {
        std::vector<float> rows(32 * 64);  // each with a single 1: at the place of its label
        std::vector<int32_t> places(32);
        for (int i = 0; i < 32; ++i) rows[64 * i + (places[i] = (step + 7 * microbatch + 11 * rank + i) % 64)] = 1;
        REPRISE_RETURN_IF_ERROR(session->CopyInput(rank, features, rows));
        REPRISE_RETURN_IF_ERROR(session->CopyInput(rank, labels, places));
      }
      REPRISE_RETURN_IF_ERROR(session->RunMicrobatch());  // one launch: all gathers, compute and reductions
    }
    REPRISE_RETURN_IF_ERROR(session->EndStep());
    for (const StepMetrics& m : session->PollMetrics()) std::cout << "step " << m.step << " loss " << m.loss << "\n";
  }
  return session->Synchronize();
}

int main() {
  const absl::Status status = Train(*CreateHostWorld({.size = 2}));
  std::cout << status << "\n";
  return status.ok() ? 0 : 1;
}
