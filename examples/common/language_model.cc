#include "examples/common/language_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "reprise/core/status_macros.h"
#include "reprise/kernels/attention.h"
#include "reprise/kernels/cross_entropy.h"
#include "reprise/kernels/embedding.h"
#include "reprise/kernels/linear.h"
#include "reprise/kernels/linear_gelu.h"
#include "reprise/kernels/residual.h"
#include "reprise/kernels/rms_norm.h"

namespace reprise::examples {
namespace {

constexpr float kEpsilon = 1e-5f;
// A graph of more blocks has too many buffer uses to be planned.
constexpr int kMaxDepth = 64000;

// Cuts a call's scratch memory into float tensors.
class Scratch {
 public:
  explicit Scratch(ComputeContext& context) : next_(static_cast<float*>(context.scratch())) {}

  TensorView<float> Take(absl::Span<const int64_t> shape) {
    const TensorView<float> view{next_, shape};
    next_ += NumElements(shape);
    return view;
  }

 private:
  float* next_;
};

Gradient<float> Assign(TensorView<float> view) {
  Gradient<float> gradient;
  gradient.data = view.data;
  gradient.shape = view.shape;
  return gradient;
}

// dx += dy, after another kernel has written dx.
absl::Status AddTo(Stream stream, TensorView<const float> dy, Gradient<float> dx) {
  if (!dx) return absl::OkStatus();
  dx.mode = WriteMode::kAdd;
  return kernels::AddBackward(stream, dy, dx, Gradient<float>());
}

class Builder {
 public:
  Builder(const LanguageModelOptions& options, LanguageModelOutput output)
      : options_(options), output_(output), rows_{options.batch, options.context, options.width} {}

  absl::StatusOr<LanguageModel> Build() {
    result_.tokens = builder_.AddInput({"tokens", {options_.batch, options_.context}, DType::kInt32});
    TensorId x = AddEmbedding();
    for (int i = 0; i < options_.depth; ++i) {
      const std::string name = absl::StrCat("block", i);
      const UnitId unit = builder_.AddUnit(name);
      x = AddAttention(name, unit, x);
      x = AddFeedForward(name, unit, x);
    }
    AddHead(x);
    REPRISE_ASSIGN_OR_RETURN(result_.model, builder_.Build());
    return std::move(result_);
  }

 private:
  ParameterId Matrix(UnitId unit, const std::string& name, int64_t rows, int64_t columns) {
    return builder_.AddParameter(unit, {name, {rows, columns}, DType::kFloat32});
  }
  ParameterId Gain(UnitId unit, const std::string& name) {
    return builder_.AddParameter(unit, {name, {options_.width}, DType::kFloat32});
  }
  TensorId Activation(const std::string& name, Shape shape) {
    return builder_.AddActivation({name, std::move(shape), DType::kFloat32});
  }
  Shape Rows(int64_t width) const { return {options_.batch, options_.context, width}; }
  int64_t Bytes(int64_t width) const { return NumElements(Rows(width)) * SizeOf(DType::kFloat32); }

  TensorId AddEmbedding() {
    const UnitId unit = builder_.AddUnit("embedding");
    const ParameterId table = Matrix(unit, "embedding.tokens", kVocabulary, options_.width);
    const ParameterId positions = Matrix(unit, "embedding.positions", options_.context, options_.width);
    const TensorId x = Activation("embedding.x", rows_);
    const TensorId tokens = result_.tokens;
    result_.compute[builder_.AddCall({.name = "embedding",
                                      .inputs = {tokens},
                                      .outputs = {x},
                                      .saved = {tokens},
                                      .forward_only_units = {unit},
                                      .scratch_bytes = Bytes(options_.width)})] = {
        [=, rows = rows_](ComputeContext& c) {
          const TensorView<float> rows_by_id = Scratch(c).Take(rows);
          REPRISE_RETURN_IF_ERROR(
              kernels::Embedding(c.stream(), c.input<int32_t>(tokens), c.parameter<float>(table), rows_by_id));
          return kernels::AddPositions(c.stream(), rows_by_id, c.parameter<float>(positions), c.output<float>(x));
        },
        [=](ComputeContext& c) {
          const TensorView<const float> dx = c.output_gradient<float>(x);
          REPRISE_RETURN_IF_ERROR(kernels::EmbeddingBackward(c.stream(), dx, c.saved<const int32_t>(tokens),
                                                             c.parameter_gradient<float>(table)));
          return kernels::AddPositionsBackward(c.stream(), dx, Gradient<float>(),
                                               c.parameter_gradient<float>(positions));
        }};
    return x;
  }

  // y = x + projection(attention(qkv(norm(x))))
  TensorId AddAttention(const std::string& name, UnitId unit, TensorId x) {
    const int64_t width = options_.width;
    const int heads = options_.heads;
    const ParameterId gain = Gain(unit, name + ".attention.gain");
    const ParameterId qkv_weight = Matrix(unit, name + ".attention.qkv", 3 * width, width);
    const ParameterId weight = Matrix(unit, name + ".attention.residual", width, width);
    const TensorId norm = Activation(name + ".attention.norm", rows_);
    const TensorId qkv = Activation(name + ".attention.qkv_rows", Rows(3 * width));
    const TensorId mixed = Activation(name + ".attention.mixed", rows_);
    const TensorId log_sum_exp =
        Activation(name + ".attention.log_sum_exp", {options_.batch, options_.heads, options_.context});
    const TensorId y = Activation(name + ".attention.y", rows_);
    result_.compute[builder_.AddCall({.name = name + ".attention",
                                      .parameters = {gain, qkv_weight, weight},
                                      .inputs = {x},
                                      .outputs = {y},
                                      .saved = {x, norm, qkv, mixed, log_sum_exp},
                                      .scratch_bytes = Bytes(width) + Bytes(3 * width)})] = {
        [=, rows = rows_](ComputeContext& c) {
          const Stream s = c.stream();
          const TensorView<float> update = Scratch(c).Take(rows);
          const TensorView<float> n = c.saved<float>(norm), q = c.saved<float>(qkv), m = c.saved<float>(mixed);
          REPRISE_RETURN_IF_ERROR(kernels::RmsNorm(s, c.input<float>(x), c.parameter<float>(gain), n, kEpsilon));
          REPRISE_RETURN_IF_ERROR(kernels::Linear(s, n, c.parameter<float>(qkv_weight), q));
          REPRISE_RETURN_IF_ERROR(kernels::CausalAttention(s, q, heads, m, c.saved<float>(log_sum_exp)));
          REPRISE_RETURN_IF_ERROR(kernels::Linear(s, m, c.parameter<float>(weight), update));
          return kernels::Add(s, c.input<float>(x), update, c.output<float>(y));
        },
        [=, rows = rows_, wide = Rows(3 * width)](ComputeContext& c) {
          const Stream s = c.stream();
          Scratch scratch(c);
          const TensorView<float> dm = scratch.Take(rows), dq = scratch.Take(wide);
          const TensorView<float> dn = dm;  // free once the gradient of q is there
          const TensorView<const float> dy = c.output_gradient<float>(y);
          const Gradient<float> dx = c.input_gradient<float>(x);
          REPRISE_RETURN_IF_ERROR(kernels::LinearBackward(s, dy, c.saved<const float>(mixed),
                                                          c.parameter<float>(weight), Assign(dm),
                                                          c.parameter_gradient<float>(weight)));
          REPRISE_RETURN_IF_ERROR(kernels::CausalAttentionBackward(s, dm, c.saved<const float>(qkv), heads,
                                                                   c.saved<const float>(log_sum_exp), Assign(dq)));
          REPRISE_RETURN_IF_ERROR(kernels::LinearBackward(s, dq, c.saved<const float>(norm),
                                                          c.parameter<float>(qkv_weight), Assign(dn),
                                                          c.parameter_gradient<float>(qkv_weight)));
          REPRISE_RETURN_IF_ERROR(kernels::RmsNormBackward(s, dn, c.saved<const float>(x), c.parameter<float>(gain),
                                                           kEpsilon, dx, c.parameter_gradient<float>(gain)));
          return AddTo(s, dy, dx);
        }};
    return y;
  }

  // y = x + down(gelu(up(norm(x))))
  TensorId AddFeedForward(const std::string& name, UnitId unit, TensorId x) {
    const int64_t width = options_.width;
    const ParameterId gain = Gain(unit, name + ".feed_forward.gain");
    const ParameterId up = Matrix(unit, name + ".feed_forward.up", 4 * width, width);
    const ParameterId down = Matrix(unit, name + ".feed_forward.residual", width, 4 * width);
    const TensorId norm = Activation(name + ".feed_forward.norm", rows_);
    const TensorId hidden = Activation(name + ".feed_forward.hidden", Rows(4 * width));
    const TensorId active = Activation(name + ".feed_forward.active", Rows(4 * width));
    const TensorId y = Activation(name + ".feed_forward.y", rows_);
    result_.compute[builder_.AddCall({.name = name + ".feed_forward",
                                      .parameters = {gain, up, down},
                                      .inputs = {x},
                                      .outputs = {y},
                                      .saved = {x, norm, hidden, active},
                                      .scratch_bytes = Bytes(width) + Bytes(4 * width)})] = {
        [=, rows = rows_](ComputeContext& c) {
          const Stream s = c.stream();
          const TensorView<float> update = Scratch(c).Take(rows);
          const TensorView<float> n = c.saved<float>(norm), h = c.saved<float>(hidden), a = c.saved<float>(active);
          REPRISE_RETURN_IF_ERROR(kernels::RmsNorm(s, c.input<float>(x), c.parameter<float>(gain), n, kEpsilon));
          REPRISE_RETURN_IF_ERROR(kernels::LinearGelu(s, n, c.parameter<float>(up), h, a));
          REPRISE_RETURN_IF_ERROR(kernels::Linear(s, a, c.parameter<float>(down), update));
          return kernels::Add(s, c.input<float>(x), update, c.output<float>(y));
        },
        [=, rows = rows_, wide = Rows(4 * width)](ComputeContext& c) {
          const Stream s = c.stream();
          Scratch scratch(c);
          const TensorView<float> dn = scratch.Take(rows), dh = scratch.Take(wide);
          const TensorView<const float> dy = c.output_gradient<float>(y);
          const Gradient<float> dx = c.input_gradient<float>(x);
          REPRISE_RETURN_IF_ERROR(kernels::LinearBackward(s, dy, c.saved<const float>(active), c.parameter<float>(down),
                                                          Gradient<float>(), c.parameter_gradient<float>(down)));
          REPRISE_RETURN_IF_ERROR(
              kernels::GeluLinearBackward(s, dy, c.saved<const float>(hidden), c.parameter<float>(down), dh));
          REPRISE_RETURN_IF_ERROR(kernels::LinearBackward(s, dh, c.saved<const float>(norm), c.parameter<float>(up),
                                                          Assign(dn), c.parameter_gradient<float>(up)));
          REPRISE_RETURN_IF_ERROR(kernels::RmsNormBackward(s, dn, c.saved<const float>(x), c.parameter<float>(gain),
                                                           kEpsilon, dx, c.parameter_gradient<float>(gain)));
          return AddTo(s, dy, dx);
        }};
    return y;
  }

  void AddHead(TensorId x) {
    const UnitId unit = builder_.AddUnit("head");
    const ParameterId gain = Gain(unit, "head.gain");
    const ParameterId weight = Matrix(unit, "head.weight", kVocabulary, options_.width);
    const TensorId norm = Activation("head.norm", rows_);
    const TensorSpec spec{"logits", Rows(kVocabulary), DType::kFloat32};
    const TensorId logits =
        output_ == LanguageModelOutput::kLogits ? builder_.AddOutput(spec) : builder_.AddActivation(spec);
    result_.compute[builder_.AddCall({.name = "head",
                                      .units = {unit},
                                      .inputs = {x},
                                      .outputs = {logits},
                                      .saved = {x, norm},
                                      .scratch_bytes = Bytes(options_.width)})] = {
        [=](ComputeContext& c) {
          const TensorView<float> n = c.saved<float>(norm);
          REPRISE_RETURN_IF_ERROR(
              kernels::RmsNorm(c.stream(), c.input<float>(x), c.parameter<float>(gain), n, kEpsilon));
          return kernels::Linear(c.stream(), n, c.parameter<float>(weight), c.output<float>(logits));
        },
        [=, rows = rows_](ComputeContext& c) {
          const TensorView<float> dn = Scratch(c).Take(rows);
          REPRISE_RETURN_IF_ERROR(kernels::LinearBackward(c.stream(), c.output_gradient<float>(logits),
                                                          c.saved<const float>(norm), c.parameter<float>(weight),
                                                          Assign(dn), c.parameter_gradient<float>(weight)));
          return kernels::RmsNormBackward(c.stream(), dn, c.saved<const float>(x), c.parameter<float>(gain), kEpsilon,
                                          c.input_gradient<float>(x), c.parameter_gradient<float>(gain));
        }};
    if (output_ == LanguageModelOutput::kLogits) {
      result_.logits = logits;
      return;
    }
    AddLoss(logits);
  }

  void AddLoss(TensorId logits) {
    const TensorId labels = builder_.AddInput({"labels", {options_.batch, options_.context}, DType::kInt32});
    const TensorId loss = builder_.AddOutput({"loss", {}, DType::kFloat32});
    result_.compute[builder_.AddCall(
        {.name = "loss", .inputs = {logits, labels}, .outputs = {loss}, .saved = {logits, labels}})] = {
        [=](ComputeContext& c) {
          return kernels::CrossEntropy(c.stream(), c.input<float>(logits), c.input<int32_t>(labels),
                                       c.output<float>(loss));
        },
        [=](ComputeContext& c) {
          return kernels::CrossEntropyBackward(c.stream(), c.output_gradient<float>(loss), c.saved<const float>(logits),
                                               c.saved<const int32_t>(labels), c.input_gradient<float>(logits));
        }};
    builder_.SetLoss(loss);
    result_.labels = labels;
    result_.loss = loss;
  }

  const LanguageModelOptions options_;
  const LanguageModelOutput output_;
  const Shape rows_;
  ModelBuilder builder_;
  LanguageModel result_;
};

}  // namespace

absl::StatusOr<LanguageModel> BuildLanguageModel(const LanguageModelOptions& options, LanguageModelOutput output) {
  constexpr int kMaxExtent = std::numeric_limits<int>::max();
  struct Size {
    const char* name;
    int value, maximum;
  };
  for (const Size& size : {Size{"depth", options.depth, kMaxDepth}, Size{"width", options.width, kMaxExtent},
                           Size{"heads", options.heads, kMaxExtent}, Size{"context", options.context, kMaxExtent},
                           Size{"batch", options.batch, kMaxExtent}}) {
    if (size.value >= 1 && size.value <= size.maximum) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(size.name, " is ", size.value, " but must be ",
                     size.value < 1 ? "at least 1" : absl::StrCat("at most ", size.maximum)));
  }
  if (options.width % options.heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("width ", options.width, " is not a multiple of heads ", options.heads, "; choose one that is"));
  }
  // The scratch memory of a feed-forward layer, or the logits if that is less. The other sizes are checked by Build.
  const double scratch_bytes = double{SizeOf(DType::kFloat32)} * options.batch * options.context *
                               std::max(5.0 * options.width, double{kVocabulary});
  if (scratch_bytes > 0x1p61) {
    return absl::InvalidArgumentError(absl::StrCat("batch ", options.batch, " of context ", options.context,
                                                   " and width ", options.width,
                                                   " takes more than 2^61 bytes for one call; lower one of them"));
  }
  return Builder(options, output).Build();
}

ShardedParameters::Initializer LanguageModelInitializer(uint64_t seed, int depth) {
  const float stddev = 0.02f;
  return [gain = Constant(1.0f), plain = Normal(seed, stddev),
          residual = Normal(seed, stddev / std::sqrt(2.0f * static_cast<float>(depth)))](
             const ParameterSpec& spec, int64_t first_element, absl::Span<float> values) {
    const auto& chosen = absl::EndsWith(spec.name, ".gain")       ? gain
                         : absl::EndsWith(spec.name, ".residual") ? residual
                                                                  : plain;
    chosen(spec, first_element, values);
  };
}

}  // namespace reprise::examples
