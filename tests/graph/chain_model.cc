// MakeChain: the model of a chain and its compute functions.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/core/status_macros.h"
#include "reprise/kernels/activations.h"
#include "reprise/kernels/cross_entropy.h"
#include "reprise/kernels/linear.h"
#include "tests/graph/chain_oracle.h"
#include "tests/testing/random_model.h"

namespace reprise::testing {
namespace {

template <class G>
void Write(const Gradient<G>& gradient, int64_t i, float value) {
  gradient.data[i] = G(gradient.mode == WriteMode::kAdd ? float(gradient.data[i]) + value : value);
}

// Calls `body` with a value of the type in which the parameter's gradient, of elements T, is written.
template <class T, class Body>
absl::Status WithGradientType(ComputeContext& c, ParameterId p, const Body& body) {
  return c.parameter_gradient_dtype(p) == DType::kFloat32 ? body(float()) : body(T());
}

template <class T>
Compute LinearCompute(TensorId x, ParameterId w, TensorId y) {
  return {[=](ComputeContext& c) {
            return kernels::Linear<T>(c.stream(), c.input<T>(x), c.parameter<T>(w), c.output<T>(y));
          },
          [=](ComputeContext& c) {
            return WithGradientType<T>(c, w, [&](auto type) {
              return kernels::LinearBackward<T>(c.stream(), c.output_gradient<T>(y), c.saved<const T>(x),
                                                c.parameter<T>(w), c.input_gradient<T>(x),
                                                c.parameter_gradient<decltype(type)>(w));
            });
          }};
}

template <class T>
Compute ReluCompute(TensorId x, TensorId y) {
  return {[=](ComputeContext& c) { return kernels::Relu<T>(c.stream(), c.input<T>(x), c.output<T>(y)); },
          [=](ComputeContext& c) {
            return kernels::ReluBackward<T>(c.stream(), c.output_gradient<T>(y), c.saved<const T>(x),
                                            c.input_gradient<T>(x));
          }};
}

// `product` is private. Its gradient lives in scratch.
template <class T>
Compute LinearReluCompute(TensorId x, ParameterId w, TensorId product, TensorId y) {
  return {[=](ComputeContext& c) {
            const TensorView<T> z = c.saved<T>(product);
            REPRISE_RETURN_IF_ERROR(kernels::Linear<T>(c.stream(), c.input<T>(x), c.parameter<T>(w), z));
            return kernels::Relu<T>(c.stream(), z, c.output<T>(y));
          },
          [=](ComputeContext& c) {
            const TensorView<const T> z = c.saved<const T>(product);
            Gradient<T> dz;
            dz.data = static_cast<T*>(c.scratch());
            dz.shape = z.shape;
            REPRISE_RETURN_IF_ERROR(kernels::ReluBackward<T>(c.stream(), c.output_gradient<T>(y), z, dz));
            return WithGradientType<T>(c, w, [&](auto type) {
              return kernels::LinearBackward<T>(c.stream(), TensorView<const T>(dz), c.saved<const T>(x),
                                                c.parameter<T>(w), c.input_gradient<T>(x),
                                                c.parameter_gradient<decltype(type)>(w));
            });
          }};
}

template <class T, class G>
absl::Status AffineBackward(ComputeContext& c, TensorId x, ParameterId scale, ParameterId shift, TensorId y) {
  const auto dy = c.output_gradient<T>(y);
  const auto in = c.saved<const T>(x);
  const auto s = c.parameter<float>(scale);
  const Gradient<float> ds = c.parameter_gradient<float>(scale);
  const Gradient<G> dt = c.parameter_gradient<G>(shift);
  const Gradient<T> dx = c.input_gradient<T>(x);
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    const int64_t columns = s.num_elements();
    for (int64_t j = 0; j < columns; ++j) {
      float scale_sum = 0, shift_sum = 0;
      for (int64_t i = j; i < in.num_elements(); i += columns) {
        scale_sum += float(dy.data[i]) * float(in.data[i]);
        shift_sum += float(dy.data[i]);
        if (dx) Write(dx, i, float(dy.data[i]) * s.data[j]);
      }
      Write(ds, j, scale_sum);
      Write(dt, j, shift_sum);
    }
  });
  return absl::OkStatus();
}

template <class T>
Compute AffineCompute(TensorId x, ParameterId scale, ParameterId shift, TensorId y) {
  return {[=](ComputeContext& c) {
            const auto in = c.input<T>(x);
            const auto s = c.parameter<float>(scale);
            const auto t = c.parameter<BFloat16>(shift);
            const auto out = c.output<T>(y);
            REPRISE_RETURN_IF_ERROR(c.status());
            c.stream().host_queue().Enqueue([=] {
              for (int64_t i = 0; i < in.num_elements(); ++i) {
                const int64_t j = i % s.num_elements();
                out.data[i] = T(float(in.data[i]) * s.data[j] + float(t.data[j]));
              }
            });
            return absl::OkStatus();
          },
          [=](ComputeContext& c) {
            return WithGradientType<BFloat16>(
                c, shift, [&](auto type) { return AffineBackward<T, decltype(type)>(c, x, scale, shift, y); });
          }};
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

template <class T>
class ChainBuilder {
 public:
  explicit ChainBuilder(Chain& chain) : chain_(chain) {}

  void Build() {
    const ChainSpec& spec = chain_.spec;
    AddParameters();
    chain_.features = builder_.AddInput({"features", {spec.rows, spec.width}, chain_.dtype});
    chain_.labels = builder_.AddInput({"labels", {spec.rows}, DType::kInt32});
    TensorId x = chain_.features;
    int64_t width = spec.width;
    for (size_t i = 0; i < spec.calls.size(); ++i) {
      const ChainCall& call = spec.calls[i];
      const bool is_linear = call.kind == ChainCall::Kind::kLinear || call.kind == ChainCall::Kind::kLinearRelu;
      if (is_linear) width = shapes_.at(call.weight)[0];
      x = AddCall(absl::StrCat("call", i), call, x, width);
    }
    chain_.classes = width;
    chain_.loss = builder_.AddOutput({"loss", {}, DType::kFloat32});
    const std::vector<TensorId> inputs = {x, chain_.labels};
    const CallId id = builder_.AddCall({.name = "loss", .inputs = inputs, .outputs = {chain_.loss}, .saved = inputs});
    chain_.compute[id] = LossCompute<T>(x, chain_.labels, chain_.loss);
    builder_.SetLoss(chain_.loss);
    chain_.model = *builder_.Build();
  }

 private:
  void AddParameters() {
    for (const ChainParameter& p : chain_.spec.parameters) {
      if (units_.count(p.unit) == 0) units_[p.unit] = builder_.AddUnit(p.unit);
      ids_[p.name] = builder_.AddParameter(
          units_[p.unit],
          {.name = p.name, .shape = p.shape, .dtype = p.dtype.value_or(chain_.dtype), .trainable = p.trainable});
      if (p.unused) builder_.AllowUnused(ids_[p.name]);
      unit_of_[p.name] = units_[p.unit];
      shapes_[p.name] = p.shape;
    }
  }

  TensorId AddCall(const std::string& name, const ChainCall& call, TensorId x, int64_t width) {
    const Shape shape = {chain_.spec.rows, width};
    const TensorId y = builder_.AddActivation({name + ".y", shape, chain_.dtype});
    CallSpec spec = {.name = name, .inputs = {x}, .outputs = {y}, .saved = {x}, .recompute = call.recompute};
    if (call.whole_unit) {
      spec.units = {unit_of_.at(call.weight)};
    } else {
      for (const std::string& parameter : {call.weight, call.shift}) {
        if (!parameter.empty()) spec.parameters.push_back(ids_.at(parameter));
      }
    }
    Compute compute;
    switch (call.kind) {
      case ChainCall::Kind::kLinear:
        compute = LinearCompute<T>(x, ids_.at(call.weight), y);
        break;
      case ChainCall::Kind::kRelu:
        compute = ReluCompute<T>(x, y);
        break;
      case ChainCall::Kind::kLinearRelu: {
        const TensorId product = builder_.AddActivation({name + ".product", shape, chain_.dtype});
        spec.saved.push_back(product);
        spec.scratch_bytes = NumElements(shape) * SizeOf(chain_.dtype);
        compute = LinearReluCompute<T>(x, ids_.at(call.weight), product, y);
        break;
      }
      case ChainCall::Kind::kAffine:
        compute = AffineCompute<T>(x, ids_.at(call.weight), ids_.at(call.shift), y);
        break;
    }
    chain_.compute[builder_.AddCall(std::move(spec))] = std::move(compute);
    return y;
  }

  Chain& chain_;
  ModelBuilder builder_;
  std::map<std::string, UnitId> units_, unit_of_;
  std::map<std::string, ParameterId> ids_;
  std::map<std::string, Shape> shapes_;
};

}  // namespace

Chain MakeChain(const ChainSpec& spec, DType dtype) {
  Chain chain;
  chain.spec = spec;
  chain.dtype = dtype;
  if (dtype == DType::kBFloat16) {
    ChainBuilder<BFloat16>(chain).Build();
  } else {
    ChainBuilder<float>(chain).Build();
  }
  return chain;
}

Batch MakeBatch(const Chain& chain, int64_t step, int microbatch, int rank) {
  Random random(static_cast<uint64_t>((step * 64 + microbatch) * 64 + rank));
  Batch batch;
  for (int64_t i = 0; i < chain.spec.rows * chain.spec.width; ++i) {
    batch.features.push_back(static_cast<float>(random.Below(257) - 128) / 128);
  }
  for (int64_t i = 0; i < chain.spec.rows; ++i) {
    batch.labels.push_back(static_cast<int32_t>(random.Below(chain.classes)));
  }
  return batch;
}

absl::Status CopyBatch(TrainSession& session, const Chain& chain, int rank, const Batch& batch) {
  REPRISE_RETURN_IF_ERROR(session.CopyInput(rank, chain.labels, batch.labels));
  if (chain.dtype == DType::kFloat32) return session.CopyInput(rank, chain.features, batch.features);
  const std::vector<BFloat16> features(batch.features.begin(), batch.features.end());
  return session.CopyInput(rank, chain.features, features);
}

}  // namespace reprise::testing
