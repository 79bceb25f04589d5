#include "tests/conformance/conformance.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/core/status_macros.h"
#include "reprise/kernels/activations.h"
#include "reprise/kernels/cross_entropy.h"
#include "reprise/kernels/linear.h"

namespace reprise::testing {
namespace {

template <class T>
Compute LayerCompute(ParameterId w, TensorId x, TensorId h, TensorId y) {
  Compute compute;
  compute.forward = [=](ComputeContext& c) {
    const TensorView<T> sum = c.saved<T>(h);
    REPRISE_RETURN_IF_ERROR(kernels::Linear<T>(c.stream(), c.input<T>(x), c.parameter<T>(w), sum));
    return kernels::Relu<T>(c.stream(), sum, c.output<T>(y));
  };
  compute.backward = [=](ComputeContext& c) {
    const TensorView<const T> sum = c.saved<const T>(h);
    Gradient<T> dsum;
    dsum.data = static_cast<T*>(c.scratch());
    dsum.shape = sum.shape;
    REPRISE_RETURN_IF_ERROR(kernels::ReluBackward<T>(c.stream(), c.output_gradient<T>(y), sum, dsum));
    if (c.parameter_gradient_dtype(w) == DTypeOf<T>::value) {
      return kernels::LinearBackward<T, T>(c.stream(), dsum, c.saved<const T>(x), c.parameter<T>(w),
                                           c.input_gradient<T>(x), c.parameter_gradient<T>(w));
    }
    return kernels::LinearBackward<T, float>(c.stream(), dsum, c.saved<const T>(x), c.parameter<T>(w),
                                             c.input_gradient<T>(x), c.parameter_gradient<float>(w));
  };
  return compute;
}

template <class T>
Compute LossCompute(TensorId logits, TensorId labels, TensorId loss) {
  return {[=](ComputeContext& c) {
            return kernels::CrossEntropy<T>(c.stream(), c.input<T>(logits), c.input<int32_t>(labels),
                                            c.output<float>(loss));
          },
          [=](ComputeContext& c) {
            return kernels::CrossEntropyBackward<T>(c.stream(), c.output_gradient<float>(loss),
                                                    c.saved<const T>(logits), c.saved<const int32_t>(labels),
                                                    c.input_gradient<T>(logits));
          }};
}

}  // namespace

Classifier MakeClassifier(int units, DType dtype) {
  constexpr int64_t kWidth = kClassifierWidth, kRows = kClassifierRows;
  const bool f32 = dtype == DType::kFloat32;
  Classifier result;
  ModelBuilder b;
  result.x = b.AddInput({.name = "x", .shape = {kRows, kWidth}, .dtype = dtype});
  result.labels = b.AddInput({.name = "labels", .shape = {kRows}, .dtype = DType::kInt32});
  TensorId x = result.x;
  for (int i = 0; i < units; ++i) {
    const UnitId unit = b.AddUnit(absl::StrCat("u", i));
    // Every other gradient needs a pack.
    const ParameterId w = b.AddParameter(unit, {.name = absl::StrCat("u", i, ".w"),
                                                .shape = {kWidth, kWidth},
                                                .dtype = dtype,
                                                .reduce_dtype = i % 2 == 0 ? DType::kFloat32 : DType::kBFloat16});
    const TensorId h = b.AddActivation({.name = absl::StrCat("h", i), .shape = {kRows, kWidth}, .dtype = dtype});
    const TensorId y = b.AddActivation({.name = absl::StrCat("y", i), .shape = {kRows, kWidth}, .dtype = dtype});
    const CallId call = b.AddCall({.name = absl::StrCat("c", i),
                                   .units = {unit},
                                   .inputs = {x},
                                   .outputs = {y},
                                   .saved = {x, h},
                                   .scratch_bytes = kRows * kWidth * SizeOf(dtype)});
    result.compute[call] = f32 ? LayerCompute<float>(w, x, h, y) : LayerCompute<BFloat16>(w, x, h, y);
    result.weights.push_back(w);
    x = y;
  }
  result.loss = b.AddOutput({.name = "loss", .shape = {}, .dtype = DType::kFloat32});
  const CallId call =
      b.AddCall({.name = "loss", .inputs = {x, result.labels}, .outputs = {result.loss}, .saved = {x, result.labels}});
  result.compute[call] =
      f32 ? LossCompute<float>(x, result.labels, result.loss) : LossCompute<BFloat16>(x, result.labels, result.loss);
  b.SetLoss(result.loss);
  result.model = *b.Build();
  return result;
}

LinearChain MakeLinearChain(const std::vector<int64_t>& widths) {
  LinearChain chain;
  ModelBuilder b;
  chain.x = b.AddInput({.name = "x", .shape = {kChainRows, widths[0]}, .dtype = DType::kFloat32});
  chain.labels = b.AddInput({.name = "labels", .shape = {kChainRows}, .dtype = DType::kInt32});
  TensorId x = chain.x;
  const TensorId labels = chain.labels;
  for (size_t i = 1; i < widths.size(); ++i) {
    const UnitId unit = b.AddUnit(absl::StrCat("u", i));
    const ParameterId w = b.AddParameter(
        unit, {.name = absl::StrCat("w", i), .shape = {widths[i], widths[i - 1]}, .dtype = DType::kFloat32});
    const TensorId y =
        b.AddActivation({.name = absl::StrCat("y", i), .shape = {kChainRows, widths[i]}, .dtype = DType::kFloat32});
    const CallId call =
        b.AddCall({.name = absl::StrCat("linear", i), .units = {unit}, .inputs = {x}, .outputs = {y}, .saved = {x}});
    chain.compute[call] = {
        [=](ComputeContext& c) {
          return kernels::Linear<float>(c.stream(), c.input<float>(x), c.parameter<float>(w), c.output<float>(y));
        },
        [=](ComputeContext& c) {
          return kernels::LinearBackward<float, float>(c.stream(), c.output_gradient<float>(y), c.saved<const float>(x),
                                                       c.parameter<float>(w), c.input_gradient<float>(x),
                                                       c.parameter_gradient<float>(w));
        }};
    x = y;
  }
  const TensorId loss = b.AddOutput({.name = "loss", .shape = {}, .dtype = DType::kFloat32});
  chain.compute[b.AddCall({.name = "loss", .inputs = {x, labels}, .outputs = {loss}, .saved = {x, labels}})] = {
      [=](ComputeContext& c) {
        return kernels::CrossEntropy<float>(c.stream(), c.input<float>(x), c.input<int32_t>(labels),
                                            c.output<float>(loss));
      },
      [=](ComputeContext& c) {
        return kernels::CrossEntropyBackward<float>(c.stream(), c.output_gradient<float>(loss), c.saved<const float>(x),
                                                    c.saved<const int32_t>(labels), c.input_gradient<float>(x));
      }};
  b.SetLoss(loss);
  chain.model = *b.Build();
  return chain;
}

float ClassifierParameter(ParameterId parameter, int64_t element) {
  return static_cast<float>((element * 7 + parameter.value() * 3) % 17 - 8) / 32;
}

double ClassifierInput(int rank, int64_t microbatch, TensorId tensor, int64_t element) {
  if (tensor.value() == 1) return static_cast<double>((element * 5 + rank * 3 + microbatch) % kClassifierWidth);
  return static_cast<double>((element * 11 + rank * 5 + microbatch * 3) % 13 - 4) / 8;
}

void ConformanceTest::SetUp() {
  absl::StatusOr<std::shared_ptr<World>> world = GetParam().new_world();
  ASSERT_TRUE(world.ok()) << world.status();
  world_ = *std::move(world);
}

absl::StatusOr<std::unique_ptr<PlanRunner>> ConformanceTest::NewRunner(const Plan& plan, const ComputeTable& compute,
                                                                       const ParameterValue& parameters,
                                                                       Optimizer optimizer) const {
  return PlanRunner::Create(world_, plan, compute, parameters,
                            {.execution = GetParam().execution, .optimizer = std::move(optimizer)});
}

absl::StatusOr<std::string> ConformanceTest::Train(const Classifier& classifier, const PlanOptions& options,
                                                   int microbatches, int steps) const {
  REPRISE_ASSIGN_OR_RETURN(const Plan plan, PlanTraining(classifier.model, ranks(), options));
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<PlanRunner> runner,
                           NewRunner(plan, classifier.compute, ClassifierParameter));
  for (int step = 0; step < steps; ++step) {
    REPRISE_RETURN_IF_ERROR(runner->RunStep(microbatches, ClassifierInput));
  }
  std::string left;
  for (size_t local = 0; local < world_->local_ranks().size(); ++local) {
    for (const UnitBuffers& unit : plan.unit_buffers) {
      for (size_t g = 0; g < unit.masters.size(); ++g) {
        std::vector<BufferId> buffers = unit.optimizer_states[g];
        buffers.push_back(unit.masters[g]);
        for (const BufferId buffer : buffers) {
          REPRISE_ASSIGN_OR_RETURN(const std::string bytes, runner->Read(static_cast<int>(local), buffer));
          left += bytes;
        }
      }
    }
  }
  REPRISE_RETURN_IF_ERROR(world_->Synchronize());
  return left;
}

absl::Status ConformanceTest::RunOnce(const Classifier& classifier) const {
  REPRISE_ASSIGN_OR_RETURN(const Plan plan, PlanTraining(classifier.model, ranks(), {}));
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<PlanRunner> runner,
                           NewRunner(plan, classifier.compute, ClassifierParameter));
  REPRISE_RETURN_IF_ERROR(runner->BeginStep(1));
  REPRISE_RETURN_IF_ERROR(runner->ReplayGraph(plan.first, ClassifierInput));
  return world_->Synchronize();
}

}  // namespace reprise::testing
