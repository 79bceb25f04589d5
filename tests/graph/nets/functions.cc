// Functions of public kernels.
#include "tests/graph/nets/functions.h"

#include <algorithm>

#include "reprise/core/status_macros.h"
#include "reprise/kernels/activations.h"
#include "reprise/kernels/attention.h"
#include "reprise/kernels/bias.h"
#include "reprise/kernels/cross_entropy.h"
#include "reprise/kernels/embedding.h"
#include "reprise/kernels/linear.h"
#include "reprise/kernels/linear_gelu.h"
#include "reprise/kernels/residual.h"
#include "reprise/kernels/rms_norm.h"

namespace reprise::testing {
namespace {

template <class T>
absl::Status Forward(ComputeContext& c, const CallIds& ids) {
  const auto x = [&](size_t i) { return c.input<T>(ids.in[i]); };
  const auto p = [&](size_t i) { return c.parameter<T>(ids.p[i]); };
  const auto y = [&] { return c.output<T>(ids.out[0]); };
  const Stream stream = c.stream();
  switch (ids.call.op) {
    case NetOp::kLinear:
      return kernels::Linear<T>(stream, x(0), p(0), y());
    case NetOp::kLinearGelu:
      return kernels::LinearGelu<T>(stream, x(0), p(0), c.saved<T>(ids.saved_private[0]), y());
    case NetOp::kMlp: {
      const TensorView<T> h = c.saved<T>(ids.saved_private[0]), activated = c.saved<T>(ids.saved_private[1]);
      REPRISE_RETURN_IF_ERROR(kernels::LinearGelu<T>(stream, x(0), p(0), h, activated));
      return kernels::Linear<T>(stream, activated, p(1), y());
    }
    case NetOp::kRelu:
      return kernels::Relu<T>(stream, x(0), y());
    case NetOp::kGelu:
      return kernels::GeluTanh<T>(stream, x(0), y());
    case NetOp::kAdd:
      return kernels::Add<T>(stream, x(0), x(1), y());
    case NetOp::kRmsNorm:
      return kernels::RmsNorm<T>(stream, x(0), p(0), y(), ids.call.epsilon);
    case NetOp::kBias:
      return kernels::AddBias<T>(stream, x(0), p(0), y());
    case NetOp::kEmbedding:
      return kernels::Embedding<T>(stream, c.input<int32_t>(ids.integers), p(0), y());
    case NetOp::kPositions:
      return kernels::AddPositions<T>(stream, x(0), p(0), y());
    case NetOp::kAttention:
      return kernels::CausalAttention<T>(stream, x(0), ids.call.heads, y(), c.saved<float>(ids.saved_private[0]));
    case NetOp::kCrossEntropy:
      return kernels::CrossEntropy<T>(stream, x(0), c.input<int32_t>(ids.integers), c.output<float>(ids.out[0]));
    case NetOp::kAffine:
      return AffineForward(c, ids);
    case NetOp::kFork:
      return ForkForward(c, ids);
    case NetOp::kGate:
      return GateForward(c, ids);
    case NetOp::kSquares:
      return SquaresForward(c, ids);
    case NetOp::kWeighted:
      return WeightedForward(c, ids);
  }
  return absl::InternalError("no such op");
}

template <class T>
Gradient<T> Assigned(TensorView<T> view) {
  Gradient<T> gradient;
  gradient.data = view.data;
  gradient.shape = view.shape;
  return gradient;
}

// G: of the parameters' gradients.
template <class T, class G>
absl::Status MlpBackward(ComputeContext& c, const CallIds& ids, TensorView<const T> dy) {
  const Stream stream = c.stream();
  const auto h = c.saved<const T>(ids.saved_private[0]), activated = c.saved<const T>(ids.saved_private[1]);
  const auto up = c.parameter<T>(ids.p[0]), down = c.parameter<T>(ids.p[1]);
  const TensorView<T> dh = c.scratch<T>(h.shape);
  const Gradient<G> ddown = c.parameter_gradient<G>(ids.p[1]);
  Gradient<G> dup = c.parameter_gradient<G>(ids.p[0]);
  if (ids.p[0] == ids.p[1]) dup.mode = WriteMode::kAdd;
  REPRISE_RETURN_IF_ERROR(c.status());
  REPRISE_RETURN_IF_ERROR(kernels::LinearBackward<T>(stream, dy, activated, down, Gradient<T>(), ddown));
  REPRISE_RETURN_IF_ERROR(kernels::GeluLinearBackward<T>(stream, dy, h, down, dh));
  return kernels::LinearBackward<T>(stream, TensorView<const T>(dh), c.saved<const T>(ids.in[0]), up,
                                    c.input_gradient<T>(ids.in[0]), dup);
}

template <class T>
absl::Status Backward(ComputeContext& c, const CallIds& ids) {
  const Stream stream = c.stream();
  const auto dy = [&] { return c.output_gradient<T>(ids.out[0]); };
  const auto saved = [&](size_t i) { return c.saved<const T>(ids.in[i]); };
  const auto dx = [&](size_t i) { return c.input_gradient<T>(ids.in[i]); };
  const auto p = [&](size_t i) { return c.parameter<T>(ids.p[i]); };
  // Calls `body` with the gradient of the first parameter, in the dtype in which it is written.
  const auto with_gradient = [&](const auto& body) {
    if (c.parameter_gradient_dtype(ids.p[0]) == DType::kFloat32) return body(c.parameter_gradient<float>(ids.p[0]));
    return body(c.parameter_gradient<T>(ids.p[0]));
  };
  switch (ids.call.op) {
    case NetOp::kLinear:
      return with_gradient(
          [&](auto dp) { return kernels::LinearBackward<T>(stream, dy(), saved(0), p(0), dx(0), dp); });
    case NetOp::kLinearGelu: {
      const auto h = c.saved<const T>(ids.saved_private[0]);
      const TensorView<T> dh = c.scratch<T>(h.shape);
      REPRISE_RETURN_IF_ERROR(c.status());
      REPRISE_RETURN_IF_ERROR(kernels::GeluTanhBackward<T>(stream, dy(), h, Assigned(dh)));
      return with_gradient([&](auto dp) {
        return kernels::LinearBackward<T>(stream, TensorView<const T>(dh), saved(0), p(0), dx(0), dp);
      });
    }
    case NetOp::kMlp: {
      // A gradient that is not wanted has any dtype.
      const bool wide = std::all_of(ids.p.begin(), ids.p.end(),
                                    [&](ParameterId id) { return c.parameter_gradient_dtype(id) == DType::kFloat32; });
      return wide ? MlpBackward<T, float>(c, ids, dy()) : MlpBackward<T, T>(c, ids, dy());
    }
    case NetOp::kRelu:
      return kernels::ReluBackward<T>(stream, dy(), ids.call.saves_output ? c.saved<const T>(ids.out[0]) : saved(0),
                                      dx(0));
    case NetOp::kGelu:
      return kernels::GeluTanhBackward<T>(stream, dy(), saved(0), dx(0));
    case NetOp::kAdd:
      return kernels::AddBackward<T>(stream, dy(), dx(0), dx(1));
    case NetOp::kRmsNorm:
      return with_gradient([&](auto dp) {
        return kernels::RmsNormBackward<T>(stream, dy(), saved(0), p(0), ids.call.epsilon, dx(0), dp);
      });
    case NetOp::kBias:
      return with_gradient([&](auto dp) { return kernels::AddBiasBackward<T>(stream, dy(), dx(0), dp); });
    case NetOp::kEmbedding:
      return with_gradient([&](auto dp) {
        return kernels::EmbeddingBackward<T>(stream, dy(), c.saved<const int32_t>(ids.integers), dp);
      });
    case NetOp::kPositions:
      return with_gradient([&](auto dp) { return kernels::AddPositionsBackward<T>(stream, dy(), dx(0), dp); });
    case NetOp::kAttention:
      return kernels::CausalAttentionBackward<T>(stream, dy(), saved(0), ids.call.heads,
                                                 c.saved<const float>(ids.saved_private[0]), dx(0));
    case NetOp::kCrossEntropy:
      return kernels::CrossEntropyBackward<T>(stream, c.output_gradient<float>(ids.out[0]), saved(0),
                                              c.saved<const int32_t>(ids.integers), dx(0));
    case NetOp::kAffine:
      return AffineBackward(c, ids);
    case NetOp::kFork:
      return ForkBackward(c, ids);
    case NetOp::kGate:
      return GateBackward(c, ids);
    case NetOp::kSquares:
      return SquaresBackward(c, ids);
    case NetOp::kWeighted:
      return WeightedBackward(c, ids);
  }
  return absl::InternalError("no such op");
}

}  // namespace

absl::Status RunForward(ComputeContext& c, const CallIds& ids, DType dtype) {
  return dtype == DType::kFloat32 ? Forward<float>(c, ids) : Forward<BFloat16>(c, ids);
}

absl::Status RunBackward(ComputeContext& c, const CallIds& ids, DType dtype) {
  REPRISE_RETURN_IF_ERROR(WriteIdleGradients(c, ids));
  return dtype == DType::kFloat32 ? Backward<float>(c, ids) : Backward<BFloat16>(c, ids);
}

}  // namespace reprise::testing
