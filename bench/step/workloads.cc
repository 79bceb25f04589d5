#include "bench/step/workloads.h"

#include "absl/strings/str_cat.h"
#include "reprise/core/status_macros.h"
#include "reprise/kernels/activations.h"
#include "reprise/kernels/cross_entropy.h"
#include "reprise/kernels/linear.h"
#include "reprise/kernels/linear_gelu.h"

namespace reprise::bench {
namespace {

using T = BFloat16;

struct Layers {
  const char* name;
  int units;
  int64_t width, hidden, tokens;  // hidden 0: one Linear per unit
  bool keep_input_gradient;
};
constexpr Layers kShapes[] = {{"seed4", 4, 16384, 0, 8192, true},
                              {"mlp4", 4, 4096, 16384, 4096, false},
                              {"mlp4s", 4, 1024, 4096, 1024, false},
                              {"tiny", 3, 64, 0, 32, true}};

Gradient<T> Assigned(TensorView<T> view) {
  Gradient<T> gradient;
  gradient.data = view.data;
  gradient.shape = view.shape;
  return gradient;
}

// Of y = x w^T, with the weights' gradient in the dtype that the plan reduces or keeps.
absl::Status LinearBackward(ComputeContext& c, TensorView<const T> dy, TensorView<const T> x, ParameterId w,
                            Gradient<T> dx) {
  if (c.parameter_gradient_dtype(w) == DType::kFloat32) {
    return kernels::LinearBackward<T, float>(c.stream(), dy, x, c.parameter<T>(w), dx, c.parameter_gradient<float>(w));
  }
  return kernels::LinearBackward<T, T>(c.stream(), dy, x, c.parameter<T>(w), dx, c.parameter_gradient<T>(w));
}

// y = relu(x w^T), in place; y says where the sum was positive.
Compute LinearRelu(ParameterId w, TensorId x, TensorId y) {
  return {[=](ComputeContext& c) {
            const TensorView<T> out = c.output<T>(y);
            REPRISE_RETURN_IF_ERROR(kernels::Linear<T>(c.stream(), c.input<T>(x), c.parameter<T>(w), out));
            return kernels::Relu<T>(c.stream(), out, out);
          },
          [=](ComputeContext& c) {
            const TensorView<const T> out = c.saved<const T>(y);
            const TensorView<T> dsum = c.scratch<T>(out.shape);
            REPRISE_RETURN_IF_ERROR(kernels::ReluBackward<T>(c.stream(), c.output_gradient<T>(y), out, Assigned(dsum)));
            return LinearBackward(c, dsum, c.saved<const T>(x), w, c.input_gradient<T>(x));
          }};
}

// y = gelu(x up^T) down^T, with the sum and the activation kept.
Compute Mlp(ParameterId up, ParameterId down, TensorId x, TensorId sum, TensorId active, TensorId y) {
  return {[=](ComputeContext& c) {
            const TensorView<T> h = c.saved<T>(sum), a = c.saved<T>(active);
            REPRISE_RETURN_IF_ERROR(kernels::LinearGelu<T>(c.stream(), c.input<T>(x), c.parameter<T>(up), h, a));
            return kernels::Linear<T>(c.stream(), a, c.parameter<T>(down), c.output<T>(y));
          },
          [=](ComputeContext& c) {
            const TensorView<const T> h = c.saved<const T>(sum);
            const TensorView<T> dh = c.scratch<T>(h.shape);
            REPRISE_RETURN_IF_ERROR(
                kernels::GeluLinearBackward<T>(c.stream(), c.output_gradient<T>(y), h, c.parameter<T>(down), dh));
            REPRISE_RETURN_IF_ERROR(LinearBackward(c, c.output_gradient<T>(y), c.saved<const T>(active), down, {}));
            return LinearBackward(c, dh, c.saved<const T>(x), up, c.input_gradient<T>(x));
          }};
}

Compute Loss(TensorId logits, TensorId labels, TensorId loss) {
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

absl::StatusOr<Workload> MakeWorkload(const std::string& name, bool external) {
  std::string names;
  for (const Layers& s : kShapes) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", s.name);
    if (name != s.name) continue;
    Workload workload = {.name = name};
    ModelBuilder b;
    TensorId x = b.AddInput({.name = "x", .shape = {s.tokens, s.width}, .external = external});
    const TensorId labels =
        b.AddInput({.name = "labels", .shape = {s.tokens}, .dtype = DType::kInt32, .external = external});
    if (s.keep_input_gradient) b.KeepGradient(x);
    for (int i = 0; i < s.units; ++i) {
      const std::string unit_name = absl::StrCat("u", i);
      const UnitId unit = b.AddUnit(unit_name);
      const TensorId y = b.AddActivation({.name = absl::StrCat("y", i), .shape = {s.tokens, s.width}});
      CallSpec call = {.name = absl::StrCat("c", i), .units = {unit}, .inputs = {x}, .outputs = {y}};
      if (s.hidden == 0) {
        const ParameterId w =
            b.AddParameter(unit, {.name = absl::StrCat(unit_name, ".w"), .shape = {s.width, s.width}});
        call.saved = {x, y};
        call.scratch_bytes = s.tokens * s.width * SizeOf(DType::kBFloat16);
        workload.compute[b.AddCall(call)] = LinearRelu(w, x, y);
      } else {
        const ParameterId up =
            b.AddParameter(unit, {.name = absl::StrCat(unit_name, ".up"), .shape = {s.hidden, s.width}});
        const ParameterId down =
            b.AddParameter(unit, {.name = absl::StrCat(unit_name, ".down"), .shape = {s.width, s.hidden}});
        const TensorId h = b.AddActivation({.name = absl::StrCat("h", i), .shape = {s.tokens, s.hidden}});
        const TensorId a = b.AddActivation({.name = absl::StrCat("a", i), .shape = {s.tokens, s.hidden}});
        call.saved = {x, h, a};
        call.scratch_bytes = s.tokens * s.hidden * SizeOf(DType::kBFloat16);
        workload.compute[b.AddCall(call)] = Mlp(up, down, x, h, a, y);
      }
      x = y;
    }
    const TensorId loss = b.AddOutput({.name = "loss", .shape = {}, .dtype = DType::kFloat32});
    workload.compute[b.AddCall({.name = "loss", .inputs = {x, labels}, .outputs = {loss}, .saved = {x, labels}})] =
        Loss(x, labels, loss);
    b.SetLoss(loss);
    REPRISE_ASSIGN_OR_RETURN(workload.model, b.Build());
    // Forward, and the gradients of weights and of inputs, that of the first input only if it is kept.
    const double product = 2.0 * static_cast<double>(s.tokens) * static_cast<double>(s.width) *
                           static_cast<double>(s.hidden == 0 ? s.width : s.hidden);
    const int per_unit = s.hidden == 0 ? 1 : 2;
    workload.flops = product * (3 * per_unit * s.units - (s.keep_input_gradient ? 0 : 1));
    return workload;
  }
  return absl::NotFoundError(absl::StrCat("there is no workload \"", name, "\"; choose from ", names));
}

}  // namespace reprise::bench
