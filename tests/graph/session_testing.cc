#include "tests/graph/session_testing.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/core/status_macros.h"
#include "reprise/kernels/activations.h"
#include "reprise/kernels/bias.h"
#include "reprise/kernels/cross_entropy.h"
#include "reprise/kernels/linear.h"
#include "tests/testing/random_model.h"

namespace reprise::testing {
namespace {

// Adds the calls of a network of elements T.
template <class T>
class NetworkBuilder {
 public:
  NetworkBuilder(const NetworkOptions& options, Network& network) : options_(options), network_(network) {}

  void Build() {
    network_.dtype = options_.dtype;
    network_.widths = options_.widths;
    network_.rows = options_.rows;
    network_.tied = options_.tied;
    network_.features = builder_.AddInput({"features", {options_.rows, options_.widths[0]}, options_.dtype});
    network_.labels = builder_.AddInput({"labels", {options_.rows}, DType::kInt32});
    TensorId x = network_.features;
    for (size_t layer = 0; layer + 1 < options_.widths.size(); ++layer) x = AddLayer(layer, x);
    AddLoss(x);
    network_.model = *builder_.Build();
  }

 private:
  TensorId AddTensor(const std::string& name, int64_t width) {
    return builder_.AddActivation({name, {options_.rows, width}, options_.dtype});
  }

  TensorId AddLayer(size_t layer, TensorId x) {
    const int64_t in = options_.widths[layer], out = options_.widths[layer + 1];
    const std::string name = absl::StrCat("layer", layer);
    const bool last = layer + 2 == options_.widths.size();
    const UnitId unit = builder_.AddUnit(name);
    const bool tied = options_.tied && layer == 2;
    const ParameterId w =
        tied ? weights_[1] : builder_.AddParameter(unit, {absl::StrCat(name, ".weight"), {out, in}, options_.dtype});
    weights_.push_back(w);
    const ParameterId b = builder_.AddParameter(
        unit, {.name = absl::StrCat(name, ".bias"), .shape = {out}, .dtype = options_.dtype, .trainable = layer != 0});
    builder_.AddParameter(
        unit, {.name = absl::StrCat(name, ".empty"), .shape = {0, 3}, .dtype = DType::kFloat32, .trainable = false});
    const TensorId product = AddTensor(absl::StrCat(name, ".product"), out);
    const TensorId sum = last ? builder_.AddOutput({"logits", {options_.rows, out}, options_.dtype})
                              : AddTensor(absl::StrCat(name, ".sum"), out);
    AddCall({.name = name + ".linear", .parameters = {w}, .inputs = {x}, .outputs = {product}, .saved = {x}},
            {[=](ComputeContext& c) {
               return kernels::Linear<T>(c.stream(), c.input<T>(x), c.parameter<T>(w), c.output<T>(product));
             },
             [=](ComputeContext& c) { return LinearBackward(c, product, x, w); }});
    AddCall({.name = name + ".bias", .parameters = {b}, .inputs = {product}, .outputs = {sum}},
            {[=](ComputeContext& c) {
               return kernels::AddBias<T>(c.stream(), c.input<T>(product), c.parameter<T>(b), c.output<T>(sum));
             },
             [=](ComputeContext& c) {
               return WithGradientType(c, b, [&](auto type) {
                 return kernels::AddBiasBackward<T>(c.stream(), c.output_gradient<T>(sum), c.input_gradient<T>(product),
                                                    c.parameter_gradient<decltype(type)>(b));
               });
             }});
    if (last) return sum;
    const TensorId y = AddTensor(absl::StrCat(name, ".y"), out);
    AddCall({.name = name + ".gelu", .inputs = {sum}, .outputs = {y}, .saved = {sum}},
            {[=](ComputeContext& c) { return kernels::GeluTanh<T>(c.stream(), c.input<T>(sum), c.output<T>(y)); },
             [=](ComputeContext& c) {
               return kernels::GeluTanhBackward<T>(c.stream(), c.output_gradient<T>(y), c.saved<const T>(sum),
                                                   c.input_gradient<T>(sum));
             }});
    return y;
  }

  void AddLoss(TensorId logits) {
    const TensorId labels = network_.labels;
    const TensorId loss = builder_.AddOutput({"loss", {}, DType::kFloat32});
    network_.loss = loss;
    network_.logits = logits;
    AddCall({.name = "loss", .inputs = {logits, labels}, .outputs = {loss}, .saved = {logits, labels}},
            {[=](ComputeContext& c) {
               return kernels::CrossEntropy<T>(c.stream(), c.input<T>(logits), c.input<int32_t>(labels),
                                               c.output<float>(loss));
             },
             [=](ComputeContext& c) {
               return kernels::CrossEntropyBackward<T>(c.stream(), c.output_gradient<float>(loss),
                                                       c.saved<const T>(logits), c.saved<const int32_t>(labels),
                                                       c.input_gradient<T>(logits));
             }});
    builder_.SetLoss(loss);
  }

  void AddCall(CallSpec spec, Compute compute) { network_.compute[builder_.AddCall(std::move(spec))] = compute; }

  // Calls `body` with a value of the type in which the parameter's gradient is written.
  template <class Body>
  static absl::Status WithGradientType(ComputeContext& c, ParameterId p, const Body& body) {
    return c.parameter_gradient_dtype(p) == DType::kFloat32 ? body(float()) : body(T());
  }

  static absl::Status LinearBackward(ComputeContext& c, TensorId y, TensorId x, ParameterId w) {
    return WithGradientType(c, w, [&](auto type) {
      return kernels::LinearBackward<T>(c.stream(), c.output_gradient<T>(y), c.saved<const T>(x), c.parameter<T>(w),
                                        c.input_gradient<T>(x), c.parameter_gradient<decltype(type)>(w));
    });
  }

  const NetworkOptions& options_;
  Network& network_;
  ModelBuilder builder_;
  std::vector<ParameterId> weights_;
};

}  // namespace

Network MakeNetwork(const NetworkOptions& options) {
  Network network;
  if (options.dtype == DType::kBFloat16) {
    NetworkBuilder<BFloat16>(options, network).Build();
  } else {
    NetworkBuilder<float>(options, network).Build();
  }
  return network;
}

Batch MakeBatch(const Network& network, int64_t step, int microbatch, int rank) {
  Random random(static_cast<uint64_t>((step * 64 + microbatch) * 64 + rank));
  Batch batch;
  for (int64_t i = 0; i < network.rows * network.widths[0]; ++i) {
    batch.features.push_back(static_cast<float>(random.Below(257) - 128) / 128);  // exact in bf16 too
  }
  for (int64_t i = 0; i < network.rows; ++i) {
    batch.labels.push_back(static_cast<int32_t>(random.Below(network.widths.back())));
  }
  return batch;
}

absl::Status CopyBatch(TrainSession& session, const Network& network, int rank, const Batch& batch) {
  REPRISE_RETURN_IF_ERROR(session.CopyInput(rank, network.labels, batch.labels));
  if (network.dtype == DType::kFloat32) return session.CopyInput(rank, network.features, batch.features);
  const std::vector<BFloat16> features(batch.features.begin(), batch.features.end());
  return session.CopyInput(rank, network.features, features);
}

absl::Status RunMicrobatches(TrainSession& session, const Network& network, const World& world, int64_t step,
                             const StepValues& values) {
  REPRISE_RETURN_IF_ERROR(session.BeginStep(values));
  for (int microbatch = 0; microbatch < values.microbatches; ++microbatch) {
    for (int rank : world.local_ranks()) {
      REPRISE_RETURN_IF_ERROR(CopyBatch(session, network, rank, MakeBatch(network, step, microbatch, rank)));
    }
    REPRISE_RETURN_IF_ERROR(session.RunMicrobatch());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::vector<float>>> ReadAll(const ShardedParameters& parameters) {
  std::vector<std::vector<float>> all;
  for (const Parameter& parameter : parameters.model().parameters()) {
    REPRISE_ASSIGN_OR_RETURN(all.emplace_back(), parameters.Read(parameter.spec.name));
  }
  return all;
}

namespace {

double Gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double GeluSlope(double x) {
  const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

// Index of a layer's weight and bias among the network's parameters.
struct LayerParameters {
  int weight, bias;
};
std::vector<LayerParameters> ParametersOf(const Network& network) {
  std::vector<LayerParameters> layers;
  for (size_t layer = 0; layer + 1 < network.widths.size(); ++layer) {
    const std::string name = absl::StrCat("layer", network.tied && layer == 2 ? 1 : layer);
    layers.push_back({network.model.FindParameter(name + ".weight")->value(),
                      network.model.FindParameter(absl::StrCat("layer", layer, ".bias"))->value()});
  }
  return layers;
}

// One row of a batch: forward, then backward into `gradients`, with the sums of absolute values of their terms.
class RowOracle {
 public:
  RowOracle(const Network& network, const std::vector<std::vector<double>>& parameters,
            std::vector<std::vector<double>>& gradients, std::vector<std::vector<double>>& magnitudes)
      : network_(network),
        layers_(ParametersOf(network)),
        parameters_(parameters),
        gradients_(gradients),
        magnitudes_(magnitudes) {}

  double Run(std::vector<double> x, int32_t label) {
    std::vector<std::vector<double>> inputs, sums;
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      inputs.push_back(x);
      std::vector<double> sum = parameters_[layers_[layer].bias];
      for (size_t o = 0; o < sum.size(); ++o) {
        for (size_t i = 0; i < x.size(); ++i) sum[o] += parameters_[layers_[layer].weight][o * x.size() + i] * x[i];
      }
      sums.push_back(sum);
      x = sum;
      for (double& value : x) value = Gelu(value);
    }
    std::vector<double> dy = sums.back();
    double total = 0;
    for (double& value : dy) total += value = std::exp(value);
    for (double& value : dy) value /= total * static_cast<double>(network_.rows);
    dy[label] -= 1.0 / static_cast<double>(network_.rows);
    for (size_t layer = layers_.size(); layer-- > 0;) {
      if (layer + 1 < layers_.size()) {
        for (size_t o = 0; o < dy.size(); ++o) dy[o] *= GeluSlope(sums[layer][o]);
      }
      dy = LayerBackward(layers_[layer], inputs[layer], dy);
    }
    return (std::log(total) - sums.back()[label]) / static_cast<double>(network_.rows);
  }

 private:
  std::vector<double> LayerBackward(const LayerParameters& layer, const std::vector<double>& x,
                                    const std::vector<double>& dy) {
    std::vector<double> dx(x.size(), 0);
    for (size_t o = 0; o < dy.size(); ++o) {
      Add(layer.bias, o, dy[o]);
      for (size_t i = 0; i < x.size(); ++i) {
        Add(layer.weight, o * x.size() + i, dy[o] * x[i]);
        dx[i] += dy[o] * parameters_[layer.weight][o * x.size() + i];
      }
    }
    return dx;
  }
  void Add(int parameter, size_t element, double value) {
    gradients_[parameter][element] += value;
    magnitudes_[parameter][element] += std::abs(value);
  }

  const Network& network_;
  const std::vector<LayerParameters> layers_;
  const std::vector<std::vector<double>>& parameters_;
  std::vector<std::vector<double>>&gradients_, &magnitudes_;
};

}  // namespace

OracleGradient Differentiate(const Network& network, const std::vector<std::vector<double>>& parameters,
                             const std::vector<Batch>& batches) {
  OracleGradient result;
  std::vector<std::vector<double>> magnitudes;
  for (const std::vector<double>& parameter : parameters) magnitudes.emplace_back(parameter.size(), 0.0);
  result.gradients = magnitudes;
  RowOracle oracle(network, parameters, result.gradients, magnitudes);
  const size_t width = static_cast<size_t>(network.widths[0]);
  for (const Batch& batch : batches) {
    for (size_t row = 0; row < batch.labels.size(); ++row) {
      const auto first = batch.features.begin() + static_cast<int64_t>(row * width);
      result.loss += oracle.Run(std::vector<double>(first, first + static_cast<int64_t>(width)), batch.labels[row]);
    }
  }
  for (size_t p = 0; p < parameters.size(); ++p) {
    const double largest = magnitudes[p].empty() ? 0 : *std::max_element(magnitudes[p].begin(), magnitudes[p].end());
    result.magnitude.push_back(largest);
    if (!network.model.parameters()[p].spec.trainable) result.gradients[p].clear();
  }
  return result;
}

double Epsilon(DType dtype) { return dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-24; }

double GradientError(const Network& network) {
  const double layers = static_cast<double>(network.widths.size()) - 1;
  const double longest =
      static_cast<double>(std::max(network.rows, *std::max_element(network.widths.begin(), network.widths.end())));
  return layers * (8 * Epsilon(network.dtype) + 2 * longest * 0x1p-24);
}

}  // namespace reprise::testing
