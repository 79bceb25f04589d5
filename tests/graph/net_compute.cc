// Build: the model of a net and its compute functions.
#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
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
#include "tests/graph/random_net.h"

namespace reprise::testing {
namespace {

// What a compute function names.
struct CallIds {
  NetCall call = {};
  std::vector<TensorId> in = {}, out = {}, saved_private = {};
  std::vector<DType> in_dtypes = {}, out_dtypes = {};
  std::vector<ParameterId> p = {};
  std::vector<DType> p_dtypes = {};
  TensorId integers = {};
  std::vector<ParameterId> idle = {};  // in the units it names, but not its own
};

// ---- functions by hand: elements of any dtype ----

struct Elements {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t count = 0;

  float operator[](int64_t i) const {
    return dtype == DType::kFloat32 ? static_cast<const float*>(data)[i] : float(static_cast<const BFloat16*>(data)[i]);
  }
};
struct Target {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t count = 0;
  WriteMode mode = WriteMode::kAssign;

  explicit operator bool() const { return data != nullptr; }
  void Write(int64_t i, float value) const {
    if (dtype == DType::kFloat32) {
      float& to = static_cast<float*>(data)[i];
      to = mode == WriteMode::kAdd ? to + value : value;
    } else {
      BFloat16& to = static_cast<BFloat16*>(data)[i];
      to = BFloat16(mode == WriteMode::kAdd ? float(to) + value : value);
    }
  }
};

template <class Body>
auto ByDType(DType dtype, const Body& body) {
  return dtype == DType::kFloat32 ? body(float()) : body(BFloat16());
}
template <class T>
Elements ElementsOf(TensorView<const T> view) {
  return {view.data, DTypeOf<T>::value, view.num_elements()};
}
template <class T>
Target TargetOf(const Gradient<T>& gradient) {
  return {gradient.data, DTypeOf<T>::value, gradient.num_elements(), gradient.mode};
}
Elements InputOf(ComputeContext& c, TensorId id, DType dtype) {
  return ByDType(dtype, [&](auto t) { return ElementsOf<decltype(t)>(c.input<decltype(t)>(id)); });
}
Elements SavedOf(ComputeContext& c, TensorId id, DType dtype) {
  return ByDType(dtype, [&](auto t) { return ElementsOf<decltype(t)>(c.saved<const decltype(t)>(id)); });
}
Elements ParameterOf(ComputeContext& c, ParameterId id, DType dtype) {
  return ByDType(dtype, [&](auto t) { return ElementsOf<decltype(t)>(c.parameter<decltype(t)>(id)); });
}
Elements OutputGradientOf(ComputeContext& c, TensorId id, DType dtype) {
  return ByDType(dtype, [&](auto t) { return ElementsOf<decltype(t)>(c.output_gradient<decltype(t)>(id)); });
}
Target OutputOf(ComputeContext& c, TensorId id, DType dtype) {
  return ByDType(dtype, [&](auto t) {
    const auto view = c.output<decltype(t)>(id);
    return Target{view.data, dtype, view.num_elements()};
  });
}
Target InputGradientOf(ComputeContext& c, TensorId id, DType dtype) {
  return ByDType(dtype, [&](auto t) { return TargetOf(c.input_gradient<decltype(t)>(id)); });
}
Target ParameterGradientOf(ComputeContext& c, ParameterId id) {
  return ByDType(c.parameter_gradient_dtype(id),
                 [&](auto t) { return TargetOf(c.parameter_gradient<decltype(t)>(id)); });
}

absl::Status AffineForward(ComputeContext& c, const CallIds& ids) {
  const Elements x = InputOf(c, ids.in[0], ids.in_dtypes[0]);
  const Elements scale = ParameterOf(c, ids.p[0], ids.p_dtypes[0]), shift = ParameterOf(c, ids.p[1], ids.p_dtypes[1]);
  const Target y = OutputOf(c, ids.out[0], ids.out_dtypes[0]);
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    for (int64_t i = 0; i < x.count; ++i) y.Write(i, x[i] * scale[i % scale.count] + shift[i % scale.count]);
  });
  return absl::OkStatus();
}
absl::Status AffineBackward(ComputeContext& c, const CallIds& ids) {
  const Elements x = SavedOf(c, ids.in[0], ids.in_dtypes[0]), scale = ParameterOf(c, ids.p[0], ids.p_dtypes[0]);
  const Elements dy = OutputGradientOf(c, ids.out[0], ids.out_dtypes[0]);
  const Target dx = InputGradientOf(c, ids.in[0], ids.in_dtypes[0]);
  const Target dscale = ParameterGradientOf(c, ids.p[0]), dshift = ParameterGradientOf(c, ids.p[1]);
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    for (int64_t j = 0; j < scale.count; ++j) {
      float scale_sum = 0, shift_sum = 0;
      for (int64_t i = j; i < x.count; i += scale.count) {
        scale_sum += dy[i] * x[i];
        shift_sum += dy[i];
        if (dx) dx.Write(i, dy[i] * scale[j]);
      }
      if (dscale) dscale.Write(j, scale_sum);
      if (dshift) dshift.Write(j, shift_sum);
    }
  });
  return absl::OkStatus();
}

absl::Status ForkForward(ComputeContext& c, const CallIds& ids) {
  const Elements x = InputOf(c, ids.in[0], ids.in_dtypes[0]), factor = ParameterOf(c, ids.p[0], ids.p_dtypes[0]);
  const Target y = OutputOf(c, ids.out[0], ids.out_dtypes[0]), copy = OutputOf(c, ids.out[1], ids.out_dtypes[1]);
  const Target twice = ids.out.size() > 2 ? OutputOf(c, ids.out[2], ids.out_dtypes[2]) : Target();
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    for (int64_t i = 0; i < x.count; ++i) {
      y.Write(i, x[i] * factor[0]);
      copy.Write(i, x[i]);
      if (twice) twice.Write(i, 2 * x[i]);
    }
  });
  return absl::OkStatus();
}
absl::Status ForkBackward(ComputeContext& c, const CallIds& ids) {
  const Elements x = SavedOf(c, ids.in[0], ids.in_dtypes[0]), factor = ParameterOf(c, ids.p[0], ids.p_dtypes[0]);
  const Elements dy = OutputGradientOf(c, ids.out[0], ids.out_dtypes[0]);
  const Elements dcopy = OutputGradientOf(c, ids.out[1], ids.out_dtypes[1]);
  const Target dx = InputGradientOf(c, ids.in[0], ids.in_dtypes[0]), dfactor = ParameterGradientOf(c, ids.p[0]);
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    float sum = 0;
    for (int64_t i = 0; i < x.count; ++i) {
      sum += dy[i] * x[i];
      if (dx) dx.Write(i, dy[i] * factor[0] + dcopy[i]);
    }
    if (dfactor) dfactor.Write(0, sum);
  });
  return absl::OkStatus();
}

absl::Status GateForward(ComputeContext& c, const CallIds& ids) {
  const Elements a = InputOf(c, ids.in[0], ids.in_dtypes[0]), b = InputOf(c, ids.in[1], ids.in_dtypes[1]);
  const Target y = OutputOf(c, ids.out[0], ids.out_dtypes[0]);
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    for (int64_t i = 0; i < a.count; ++i) y.Write(i, a[i] * b[i]);
  });
  return absl::OkStatus();
}
absl::Status GateBackward(ComputeContext& c, const CallIds& ids) {
  const Elements a = SavedOf(c, ids.in[0], ids.in_dtypes[0]), b = SavedOf(c, ids.in[1], ids.in_dtypes[1]);
  const Elements dy = OutputGradientOf(c, ids.out[0], ids.out_dtypes[0]);
  const Target da = InputGradientOf(c, ids.in[0], ids.in_dtypes[0]);
  const Target db = InputGradientOf(c, ids.in[1], ids.in_dtypes[1]);
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    for (int64_t i = 0; i < a.count; ++i) {
      if (da) da.Write(i, dy[i] * b[i]);
      if (db) db.Write(i, dy[i] * a[i]);
    }
  });
  return absl::OkStatus();
}

absl::Status SquaresForward(ComputeContext& c, const CallIds& ids) {
  const Elements x = InputOf(c, ids.in[0], ids.in_dtypes[0]);
  const Target y = OutputOf(c, ids.out[0], ids.out_dtypes[0]);
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    float sum = 0;
    for (int64_t i = 0; i < x.count; ++i) sum += x[i] * x[i];
    y.Write(0, sum / static_cast<float>(2 * x.count));
  });
  return absl::OkStatus();
}
absl::Status SquaresBackward(ComputeContext& c, const CallIds& ids) {
  const Elements x = SavedOf(c, ids.in[0], ids.in_dtypes[0]);
  const Elements dy = OutputGradientOf(c, ids.out[0], ids.out_dtypes[0]);
  const Target dx = InputGradientOf(c, ids.in[0], ids.in_dtypes[0]);
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    for (int64_t i = 0; dx && i < x.count; ++i) dx.Write(i, dy[0] * x[i] / static_cast<float>(x.count));
  });
  return absl::OkStatus();
}

absl::Status WeightedForward(ComputeContext& c, const CallIds& ids) {
  std::vector<Elements> x;
  for (const TensorId id : ids.in) x.push_back(InputOf(c, id, DType::kFloat32));
  const Target y = OutputOf(c, ids.out[0], ids.out_dtypes[0]);
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    float sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += x[i][0] / static_cast<float>(i + 1);
    y.Write(0, sum);
  });
  return absl::OkStatus();
}
absl::Status WeightedBackward(ComputeContext& c, const CallIds& ids) {
  std::vector<Target> dx;
  for (const TensorId id : ids.in) dx.push_back(InputGradientOf(c, id, DType::kFloat32));
  const Elements dy = OutputGradientOf(c, ids.out[0], ids.out_dtypes[0]);
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    for (size_t i = 0; i < dx.size(); ++i) {
      if (dx[i]) dx[i].Write(0, dy[0] / static_cast<float>(i + 1));
    }
  });
  return absl::OkStatus();
}

// The gradient of what a call does not use is 0.
absl::Status WriteIdleGradients(ComputeContext& c, const CallIds& ids) {
  for (const ParameterId p : ids.idle) {
    const Target gradient = ParameterGradientOf(c, p);
    REPRISE_RETURN_IF_ERROR(c.status());
    if (!gradient || gradient.mode == WriteMode::kAdd) continue;
    c.stream().host_queue().Enqueue([=] {
      for (int64_t i = 0; i < gradient.count; ++i) gradient.Write(i, 0);
    });
  }
  return absl::OkStatus();
}

// ---- kernels of elements T ----

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

// ---- the model ----

class NetBuilder {
 public:
  explicit NetBuilder(const Net& net) : net_(net) {}

  BuiltNet Build() && {
    for (int unit = 0; unit < net_.num_units; ++unit) units_.push_back(builder_.AddUnit(absl::StrCat("u", unit)));
    for (const NetParameter& p : net_.parameters) {
      parameters_.push_back(builder_.AddParameter(units_[p.unit], p.spec));
      if (p.allow_unused) builder_.AllowUnused(parameters_.back());
    }
    for (const NetIntegers& integers : net_.integers) {
      built_.integers.push_back(builder_.AddInput({integers.name, net_.lead, DType::kInt32}));
    }
    for (const NetValue& value : net_.values) built_.values.push_back(AddTensor(value));
    for (size_t i = 0; i < net_.calls.size(); ++i)
      AddCall(net_.calls[i], absl::StrCat("c", i, ".", Name(net_.calls[i].op)));
    builder_.SetLoss(built_.values[net_.loss]);
    built_.model = *builder_.Build();
    return std::move(built_);
  }

 private:
  Shape WithWidth(int64_t width) const {
    Shape shape = net_.lead;
    shape.push_back(width);
    return shape;
  }

  TensorId AddTensor(const NetValue& value) {
    TensorSpec spec = {.name = value.name, .dtype = value.dtype, .external = value.external};
    if (!value.scalar) spec.shape = WithWidth(value.width);
    if (value.kind == TensorKind::kActivation) return builder_.AddActivation(std::move(spec));
    if (value.kind == TensorKind::kOutput) return builder_.AddOutput(std::move(spec));
    const TensorId id = builder_.AddInput(std::move(spec));
    if (value.keep_gradient) builder_.KeepGradient(id);
    return id;
  }

  TensorId AddPrivate(const std::string& name, Shape shape, DType dtype, CallSpec& spec, CallIds& ids) {
    ids.saved_private.push_back(builder_.AddActivation({absl::StrCat(spec.name, ".", name), std::move(shape), dtype}));
    spec.saved.push_back(ids.saved_private.back());
    return ids.saved_private.back();
  }

  // What backward reads, by operation.
  void AddSaved(const NetCall& call, CallSpec& spec, CallIds& ids) {
    switch (call.op) {
      case NetOp::kLinearGelu:
      case NetOp::kMlp: {
        const int64_t inner = net_.parameters[call.parameters[0]].spec.shape[0];
        AddPrivate("h", WithWidth(inner), ids.in_dtypes[0], spec, ids);
        if (call.op == NetOp::kMlp) AddPrivate("activated", WithWidth(inner), ids.in_dtypes[0], spec, ids);
        spec.scratch_bytes = net_.rows() * inner * SizeOf(ids.in_dtypes[0]);
        spec.saved.push_back(ids.in[0]);
        return;
      }
      case NetOp::kAttention: {
        Shape shape = net_.lead;
        shape.insert(shape.end() - 1, call.heads);
        AddPrivate("log_sum_exp", shape, DType::kFloat32, spec, ids);
        spec.saved.push_back(ids.in[0]);
        return;
      }
      case NetOp::kRelu:
        spec.saved.push_back(call.saves_output ? ids.out[0] : ids.in[0]);
        return;
      case NetOp::kEmbedding:
        spec.saved.push_back(ids.integers);
        return;
      case NetOp::kCrossEntropy:
        spec.saved = {ids.in[0], ids.integers};
        return;
      case NetOp::kLinear:
      case NetOp::kGelu:
      case NetOp::kRmsNorm:
      case NetOp::kAffine:
      case NetOp::kFork:
      case NetOp::kGate:
      case NetOp::kSquares:
        spec.saved = ids.in;
        return;
      case NetOp::kAdd:
      case NetOp::kBias:
      case NetOp::kPositions:
      case NetOp::kWeighted:
        return;
    }
  }

  void AddCall(const NetCall& call, const std::string& name) {
    CallSpec spec = {.name = name, .recompute = call.recompute};
    CallIds ids = {.call = call};
    for (const int x : call.inputs) {
      ids.in.push_back(built_.values[x]);
      ids.in_dtypes.push_back(net_.values[x].dtype);
    }
    for (const int y : call.outputs) {
      ids.out.push_back(built_.values[y]);
      ids.out_dtypes.push_back(net_.values[y].dtype);
    }
    spec.inputs = ids.in;
    spec.outputs = ids.out;
    if (call.integers >= 0) {
      ids.integers = built_.integers[call.integers];
      spec.inputs.push_back(ids.integers);
    }
    AddParameters(call, spec, ids);
    AddSaved(call, spec, ids);
    // Of the operands of kernels: all inputs and parameters, or the output of an embedding.
    const DType dtype = ids.in_dtypes.empty() ? ids.out_dtypes[0] : ids.in_dtypes[0];
    const auto shared = std::make_shared<const CallIds>(std::move(ids));
    built_.compute[builder_.AddCall(std::move(spec))] = {
        [=](ComputeContext& c) { return ByDType(dtype, [&](auto t) { return Forward<decltype(t)>(c, *shared); }); },
        [=](ComputeContext& c) {
          REPRISE_RETURN_IF_ERROR(WriteIdleGradients(c, *shared));
          return ByDType(dtype, [&](auto t) { return Backward<decltype(t)>(c, *shared); });
        }};
  }

  void AddParameters(const NetCall& call, CallSpec& spec, CallIds& ids) {
    const std::set<int> whole(call.whole_units.begin(), call.whole_units.end());
    for (const int unit : whole) (call.forward_only ? spec.forward_only_units : spec.units).push_back(units_[unit]);
    std::set<int> own;
    for (const int p : call.parameters) {
      ids.p.push_back(parameters_[p]);
      ids.p_dtypes.push_back(net_.parameters[p].spec.dtype);
      const bool named = whole.count(net_.parameters[p].unit) != 0 || own.count(p) != 0;
      if (!named) spec.parameters.push_back(parameters_[p]);
      own.insert(p);
    }
    for (size_t p = 0; p < net_.parameters.size(); ++p) {
      if (whole.count(net_.parameters[p].unit) != 0 && own.count(static_cast<int>(p)) == 0) {
        ids.idle.push_back(parameters_[p]);
      }
    }
  }

  const Net& net_;
  ModelBuilder builder_;
  BuiltNet built_;
  std::vector<UnitId> units_;
  std::vector<ParameterId> parameters_;
};

}  // namespace

BuiltNet Build(const Net& net) { return NetBuilder(net).Build(); }

}  // namespace reprise::testing
