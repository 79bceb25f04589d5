// MakeDot: a dot product and its training.
#include <utility>

#include "reprise/core/status_macros.h"
#include "reprise/kernels/cast.h"
#include "reprise/kernels/linear.h"
#include "tests/graph/session_testing.h"

namespace reprise::testing {
namespace {

Compute FloatCompute(ParameterId w, TensorId x, TensorId loss) {
  return {[=](ComputeContext& c) {
            return kernels::Linear<float>(c.stream(), c.input<float>(x), c.parameter<float>(w), c.output<float>(loss));
          },
          [=](ComputeContext& c) {
            return kernels::LinearBackward<float, float>(c.stream(), c.output_gradient<float>(loss),
                                                         c.saved<const float>(x), c.parameter<float>(w),
                                                         c.input_gradient<float>(x), c.parameter_gradient<float>(w));
          }};
}

// The loss is float32, so that the product and its gradient pass through scratch.
Compute BFloat16Compute(ParameterId w, TensorId x, TensorId loss) {
  using T = BFloat16;
  return {
      [=](ComputeContext& c) {
        const TensorView<T> y = c.scratch<T>({});
        const TensorView<float> sum = c.output<float>(loss);
        REPRISE_RETURN_IF_ERROR(c.status());
        REPRISE_RETURN_IF_ERROR(kernels::Linear<T>(c.stream(), c.input<T>(x), c.parameter<T>(w), y));
        return kernels::Cast(c.stream(), DType::kBFloat16, y.data, DType::kFloat32, sum.data, 1);
      },
      [=](ComputeContext& c) {
        const TensorView<T> dy = c.scratch<T>({});
        const TensorView<const float> dsum = c.output_gradient<float>(loss);
        REPRISE_RETURN_IF_ERROR(c.status());
        REPRISE_RETURN_IF_ERROR(kernels::Cast(c.stream(), DType::kFloat32, dsum.data, DType::kBFloat16, dy.data, 1));
        const auto backward = [&](auto gradient_type) {
          return kernels::LinearBackward<T>(c.stream(), dy, c.saved<const T>(x), c.parameter<T>(w),
                                            c.input_gradient<T>(x), c.parameter_gradient<decltype(gradient_type)>(w));
        };
        return c.parameter_gradient_dtype(w) == DType::kFloat32 ? backward(float()) : backward(T());
      }};
}

}  // namespace

Dot MakeDot(const DotOptions& options) {
  Dot dot;
  ModelBuilder builder;
  const UnitId unit = builder.AddUnit("unit");
  const DType dtype = options.dtype;
  dot.w = builder.AddParameter(unit, {.name = "w", .shape = {options.size}, .dtype = dtype});
  if (options.with_others) {
    builder.AddParameter(unit, {.name = "frozen", .shape = {3}, .dtype = dtype, .trainable = false});
    builder.AllowUnused(
        builder.AddParameter(builder.AddUnit("other"), {.name = "unused", .shape = {7}, .dtype = dtype}));
  }
  dot.x = builder.AddInput({.name = "x", .shape = {options.size}, .dtype = dtype, .external = options.external});
  dot.loss = builder.AddOutput({.name = "loss", .dtype = DType::kFloat32});
  if (options.keep_gradient) builder.KeepGradient(dot.x);
  dot.call = builder.AddCall({.name = "dot",
                              .parameters = {dot.w},
                              .inputs = {dot.x},
                              .outputs = {dot.loss},
                              .saved = {dot.x},
                              .scratch_bytes = dtype == DType::kFloat32 ? 0 : SizeOf(dtype)});
  builder.SetLoss(dot.loss);
  dot.compute[dot.call] =
      dtype == DType::kFloat32 ? FloatCompute(dot.w, dot.x, dot.loss) : BFloat16Compute(dot.w, dot.x, dot.loss);
  dot.model = *builder.Build();
  return dot;
}

absl::StatusOr<DotTraining> StartTraining(std::shared_ptr<World> world, Dot dot, TrainOptions options) {
  DotTraining training;
  training.dot = std::move(dot);
  const Model& model = training.dot.model;
  REPRISE_ASSIGN_OR_RETURN(training.parameters, ShardedParameters::Create(std::move(world), model));
  REPRISE_RETURN_IF_ERROR(training.parameters->Initialize(Constant(1)));
  REPRISE_ASSIGN_OR_RETURN(training.session,
                           TrainSession::Create(training.parameters, model, training.dot.compute, std::move(options)));
  return training;
}

absl::Status RunMicrobatches(const DotTraining& training, const StepValues& values,
                             const std::function<float(int, int)>& x_of) {
  REPRISE_RETURN_IF_ERROR(training.session->BeginStep(values));
  const TensorId x = training.dot.x;
  const TensorSpec& spec = training.dot.model.tensor(x).spec;
  const size_t size = static_cast<size_t>(NumElements(spec.shape));
  for (int m = 0; m < values.microbatches; ++m) {
    for (const int rank : training.parameters->world()->local_ranks()) {
      const std::vector<float> values_of_x(size, x_of(m, rank));
      const std::vector<BFloat16> rounded(values_of_x.begin(), values_of_x.end());
      REPRISE_RETURN_IF_ERROR(spec.dtype == DType::kFloat32 ? training.session->CopyInput(rank, x, values_of_x)
                                                            : training.session->CopyInput(rank, x, rounded));
    }
    REPRISE_RETURN_IF_ERROR(training.session->RunMicrobatch());
  }
  return absl::OkStatus();
}

}  // namespace reprise::testing
