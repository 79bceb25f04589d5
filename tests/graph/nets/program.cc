// Textbook definitions, one call at a time.
#include "tests/graph/nets/program.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "tests/graph/nets/arithmetic.h"

namespace reprise::testing {
namespace {

class NetLoop {
 public:
  NetLoop(const Net& net, const NetWeights& weights, const NetBatch& batch, std::vector<Values> values)
      : net_(net),
        weights_(weights),
        batch_(batch),
        rows_(static_cast<size_t>(net.rows())),
        values_(std::move(values)) {}

  std::vector<Values> Forward() {
    values_.resize(net_.values.size());
    for (size_t v = 0; v < values_.size(); ++v) {
      for (const float value : batch_.values[v]) values_[v].push_back({value, 0});
    }
    for (const NetCall& call : net_.calls) Forward(call);
    if (unbounded_) Unbound(values_);
    return values_;
  }

  std::vector<Values> Backward(double loss_scale, absl::Span<const DType> gradient_dtypes, NetWeights& gradients) {
    gradient_dtypes_ = gradient_dtypes;
    parameter_gradients_ = &gradients;
    gradients_.resize(net_.values.size());
    gradients_[net_.loss] = {{loss_scale, 0}};
    unbounded_ = std::isinf(values_[net_.loss][0].error);
    for (size_t i = net_.calls.size(); i-- > 0;) Backward(net_.calls[i]);
    if (unbounded_) {
      Unbound(gradients_);
      Unbound(gradients);
    }
    return gradients_;
  }

 private:
  size_t Width(int value) const { return static_cast<size_t>(net_.values[value].width); }

  static void Unbound(std::vector<Values>& lists) {
    for (Values& list : lists) {
      for (Approximate& a : list) a.error = std::numeric_limits<double>::infinity();
    }
  }
  Approximate StoredBounded(const Approximate& a, DType dtype) {
    unbounded_ = unbounded_ || !(Magnitude(a) < kLargestBounded);
    return Stored(a, dtype);
  }

  // ---- forward ----

  void Store(int value, Values result) {
    for (Approximate& a : result) a = StoredBounded(a, net_.values[value].dtype);
    values_[value] = std::move(result);
  }

  // [rows, in] [out, in]^T
  Values Linear(const Values& x, const Values& w, size_t in) const {
    const size_t out = w.size() / in;
    Values y;
    for (size_t row = 0; row < x.size() / in; ++row) {
      for (size_t o = 0; o < out; ++o) {
        SumOfProducts sum;
        for (size_t k = 0; k < in; ++k) sum.Add(x[row * in + k], w[o * in + k]);
        y.push_back(sum.sum());
      }
    }
    return y;
  }
  // x w^T as it is stored, so that GELU may take it before or after that rounding.
  Values Hidden(const NetCall& call) const {
    const int x = call.inputs[0];
    Values h = Linear(values_[x], weights_[call.parameters[0]], Width(x));
    for (Approximate& a : h) a = Stored(a, net_.values[x].dtype);
    return h;
  }
  Values Activated(const NetCall& call) const {
    Values y;
    for (const Approximate& h : Hidden(call)) y.push_back(Gelu(h));
    return y;
  }
  Values StoredActivated(const NetCall& call) const {
    Values y = Activated(call);
    for (Approximate& a : y) a = Stored(a, net_.values[call.inputs[0]].dtype);
    return y;
  }

  // Row by row: 1 / sqrt(mean(x^2) + epsilon).
  Values RowFactors(const NetCall& call) const {
    const Values& x = values_[call.inputs[0]];
    const size_t width = Width(call.inputs[0]);
    Values factors;
    for (size_t row = 0; row < rows_; ++row) {
      SumOfProducts squares;
      for (size_t j = 0; j < width; ++j) squares.Add(x[row * width + j], x[row * width + j]);
      const Approximate mean = Times(squares.sum(), 1 / static_cast<double>(width));
      factors.push_back(InverseRoot(Sum(mean, {call.epsilon, 0}), call.epsilon * (1 - 4 * kUnit)));
    }
    return factors;
  }

  void Forward(const NetCall& call) {
    const auto x = [&](size_t i) -> const Values& { return values_[call.inputs[i]]; };
    const auto p = [&](size_t i) -> const Values& { return weights_[call.parameters[i]]; };
    const int to = call.outputs[0];
    const size_t width = call.inputs.empty() ? 0 : Width(call.inputs[0]);
    Values y;
    switch (call.op) {
      case NetOp::kLinear:
        y = Linear(x(0), p(0), width);
        break;
      case NetOp::kLinearGelu:
        y = Activated(call);
        break;
      case NetOp::kMlp: {
        const Values activated = StoredActivated(call);
        y = Linear(activated, p(1), activated.size() / rows_);
        break;
      }
      case NetOp::kRelu:
        for (const Approximate& a : x(0)) y.push_back({std::max(a.value, 0.0), a.error});
        break;
      case NetOp::kGelu:
        for (const Approximate& a : x(0)) y.push_back(Gelu(a));
        break;
      case NetOp::kAdd:
        for (size_t i = 0; i < x(0).size(); ++i) y.push_back(Sum(x(0)[i], x(1)[i]));
        break;
      case NetOp::kRmsNorm: {
        const Values factors = RowFactors(call);
        for (size_t i = 0; i < x(0).size(); ++i) {
          y.push_back(Product(Product(p(0)[i % width], x(0)[i]), factors[i / width]));
        }
        break;
      }
      case NetOp::kBias:
        for (size_t i = 0; i < x(0).size(); ++i) y.push_back(Sum(x(0)[i], p(0)[i % width]));
        break;
      case NetOp::kEmbedding:
        for (const int32_t id : batch_.integers[call.integers]) {
          for (size_t j = 0; j < Width(to); ++j) y.push_back(p(0)[static_cast<size_t>(id) * Width(to) + j]);
        }
        break;
      case NetOp::kPositions:
        for (size_t i = 0; i < x(0).size(); ++i) y.push_back(Sum(x(0)[i], p(0)[PositionOf(i, width)]));
        break;
      case NetOp::kAttention:
        y = Attention(call);
        break;
      case NetOp::kCrossEntropy:
        y = {CrossEntropy(call)};
        break;
      case NetOp::kAffine:
        for (size_t i = 0; i < x(0).size(); ++i) {
          y.push_back(Sum(Product(x(0)[i], p(0)[i % width]), p(1)[i % width]));
        }
        break;
      case NetOp::kFork:
        for (const Approximate& a : x(0)) y.push_back(Product(a, p(0)[0]));
        for (size_t i = 1; i < call.outputs.size(); ++i) {
          Values copy = x(0);
          if (i == 2) {
            for (Approximate& a : copy) a = {2 * a.value, 2 * a.error};
          }
          Store(call.outputs[i], std::move(copy));
        }
        break;
      case NetOp::kGate:
        for (size_t i = 0; i < x(0).size(); ++i) y.push_back(Product(x(0)[i], x(1)[i]));
        break;
      case NetOp::kSquares: {
        SumOfProducts squares;
        for (const Approximate& a : x(0)) squares.Add(a, a);
        y = {Times(squares.sum(), 1 / static_cast<double>(2 * x(0).size()))};
        break;
      }
      case NetOp::kWeighted: {
        SumOfProducts sum;
        for (size_t i = 0; i < call.inputs.size(); ++i) sum.Add(x(i)[0], Fraction(i));
        y = {sum.sum()};
        break;
      }
    }
    Store(to, std::move(y));
  }

  static Approximate Fraction(size_t i) {
    const double value = 1 / static_cast<double>(i + 1);
    return {value, value * kUnit};
  }
  size_t PositionOf(size_t element, size_t width) const {
    const size_t time = static_cast<size_t>(net_.lead.back());
    return element / width % time * width + element % width;
  }

  // log(sum(exp(s))) changes by at most the largest error of the scores.
  Approximate CrossEntropy(const NetCall& call) const {
    const Values& logits = values_[call.inputs[0]];
    const size_t classes = Width(call.inputs[0]);
    Approximate loss;
    for (size_t row = 0; row < rows_; ++row) {
      double total = 0, largest = 0, error = 0, top = logits[row * classes].value;
      for (size_t j = 0; j < classes; ++j) {
        const Approximate& s = logits[row * classes + j];
        largest = std::max(largest, Magnitude(s));
        error = std::max(error, s.error);
        top = std::max(top, s.value);
      }
      for (size_t j = 0; j < classes; ++j) total += std::exp(logits[row * classes + j].value - top);
      const double roundings = (2 * largest + static_cast<double>(classes) + 16) * kUnit;
      const size_t label = static_cast<size_t>(batch_.integers[call.integers][row]);
      loss.value += top + std::log(total) - logits[row * classes + label].value;
      loss.error += 2 * error + roundings * (1 + std::log(total) + 2 * largest);
    }
    return {loss.value / static_cast<double>(rows_), loss.error / static_cast<double>(rows_)};
  }

  // ---- attention: one head of one sequence ----

  struct Head {
    size_t first_row = 0, column = 0, width = 0, time = 0, stride = 0;  // of query in a row of 3 `model` columns
    size_t model = 0;
    double scale = 1;
    std::vector<Values> p;  // by row

    size_t query(size_t t, size_t j) const { return (first_row + t) * stride + column + j; }
    size_t key(size_t t, size_t j) const { return query(t, j) + model; }
    size_t value(size_t t, size_t j) const { return query(t, j) + 2 * model; }
    size_t output(size_t t, size_t j) const { return (first_row + t) * model + column + j; }
  };
  void ForEachHead(const NetCall& call, const std::function<void(const Head&)>& body) const {
    const Values& x = values_[call.inputs[0]];
    const size_t time = static_cast<size_t>(net_.lead.back()), stride = Width(call.inputs[0]), model = stride / 3;
    const size_t width = model / static_cast<size_t>(call.heads);
    for (size_t first_row = 0; first_row < rows_; first_row += time) {
      for (size_t column = 0; column < model; column += width) {
        Head head = {first_row, column, width, time, stride, model, 1 / std::sqrt(static_cast<double>(width)), {}};
        for (size_t t = 0; t < time; ++t) {
          Values scores;
          for (size_t s = 0; s <= t; ++s) {
            SumOfProducts sum;
            for (size_t j = 0; j < width; ++j) sum.Add(x[head.query(t, j)], x[head.key(s, j)]);
            scores.push_back(Times(sum.sum(), head.scale));
          }
          head.p.push_back(Softmax(scores));
        }
        body(head);
      }
    }
  }

  Values Attention(const NetCall& call) const {
    const Values& x = values_[call.inputs[0]];
    Values y(x.size() / 3);
    ForEachHead(call, [&](const Head& head) {
      for (size_t t = 0; t < head.time; ++t) {
        for (size_t j = 0; j < head.width; ++j) {
          SumOfProducts sum;
          for (size_t s = 0; s <= t; ++s) sum.Add(head.p[t][s], x[head.value(s, j)]);
          y[head.output(t, j)] = sum.sum();
        }
      }
    });
    return y;
  }

  Values AttentionBackward(const NetCall& call, const Values& dy) const {
    const Values& x = values_[call.inputs[0]];
    Values dx(x.size());
    ForEachHead(call, [&](const Head& head) {
      // Gradients of the scores, before their scale.
      std::vector<Values> ds(head.time);
      for (size_t t = 0; t < head.time; ++t) {
        Values dp;
        SumOfProducts mean;
        for (size_t s = 0; s <= t; ++s) {
          SumOfProducts sum;
          for (size_t j = 0; j < head.width; ++j) sum.Add(dy[head.output(t, j)], x[head.value(s, j)]);
          dp.push_back(sum.sum());
          mean.Add(head.p[t][s], dp.back());
        }
        for (size_t s = 0; s <= t; ++s) ds[t].push_back(Product(head.p[t][s], Sum(dp[s], Negated(mean.sum()))));
      }
      for (size_t t = 0; t < head.time; ++t) {
        for (size_t j = 0; j < head.width; ++j) {
          SumOfProducts dq, dk, dv;
          for (size_t s = 0; s <= t; ++s) dq.Add(ds[t][s], x[head.key(s, j)]);
          for (size_t later = t; later < head.time; ++later) {
            dk.Add(ds[later][t], x[head.query(later, j)]);
            dv.Add(head.p[later][t], dy[head.output(later, j)]);
          }
          dx[head.query(t, j)] = Times(dq.sum(), head.scale);
          dx[head.key(t, j)] = Times(dk.sum(), head.scale);
          dx[head.value(t, j)] = dv.sum();
        }
      }
    });
    return dx;
  }

  // ---- backward ----

  void AddTerms(Values& sums, const Values& terms, DType dtype, bool assign) {
    if (assign) sums.assign(terms.size(), {});
    for (size_t i = 0; i < terms.size(); ++i) {
      const Approximate term = StoredBounded(terms[i], dtype);
      sums[i] = assign ? term : StoredBounded({sums[i].value + term.value, sums[i].error + term.error}, dtype);
    }
  }
  void AddInput(int value, const Values& terms) {
    AddTerms(gradients_[value], terms, net_.values[value].dtype, gradients_[value].empty());
  }
  void AddParameter(int parameter, const Values& terms) {
    if (!net_.parameters[parameter].spec.trainable) return;
    Values& sums = (*parameter_gradients_)[parameter];
    AddTerms(sums, terms, gradient_dtypes_[parameter], sums.empty());
  }

  void LinearBackward(const Values& x, int parameter, const Values& dy, size_t in, int input) {
    const Values& w = weights_[parameter];
    const size_t out = w.size() / in;
    Values dw, dx;
    for (size_t o = 0; o < out; ++o) {
      for (size_t k = 0; k < in; ++k) {
        SumOfProducts sum;
        for (size_t row = 0; row < rows_; ++row) sum.Add(dy[row * out + o], x[row * in + k]);
        dw.push_back(sum.sum());
      }
    }
    AddParameter(parameter, dw);
    if (input < 0) return;
    for (size_t row = 0; row < rows_; ++row) {
      for (size_t k = 0; k < in; ++k) {
        SumOfProducts sum;
        for (size_t o = 0; o < out; ++o) sum.Add(dy[row * out + o], w[o * in + k]);
        dx.push_back(sum.sum());
      }
    }
    AddInput(input, dx);
  }

  // dh = (dy w) gelu'(h), stored.
  Values HiddenGradient(const NetCall& call, const Values& dy) const {
    const Values h = Hidden(call);
    Values dh;
    for (size_t i = 0; i < h.size(); ++i) {
      dh.push_back(Stored(Product(dy[i], GeluDerivative(h[i])), net_.values[call.inputs[0]].dtype));
    }
    return dh;
  }

  Values ColumnSums(const Values& terms, size_t width) const {
    Values sums;
    for (size_t j = 0; j < width; ++j) {
      SumOfProducts sum;
      for (size_t i = j; i < terms.size(); i += width) sum.Add(terms[i], {1, 0});
      sums.push_back(sum.sum());
    }
    return sums;
  }

  void RmsNormBackward(const NetCall& call, const Values& x, const Values& gain, const Values& dy) {
    const size_t width = Width(call.inputs[0]);
    const Values factors = RowFactors(call);
    Values dgain_terms, dx;
    for (size_t row = 0; row < rows_; ++row) {
      const Approximate& r = factors[row];
      SumOfProducts dot;
      for (size_t j = 0; j < width; ++j) {
        const size_t i = row * width + j;
        dgain_terms.push_back(Product(Product(dy[i], x[i]), r));
        dot.Add(Product(dy[i], gain[j]), x[i]);
      }
      const Approximate pull = Product(Times(dot.sum(), 1 / static_cast<double>(width)), Product(r, Product(r, r)));
      for (size_t j = 0; j < width; ++j) {
        const size_t i = row * width + j;
        dx.push_back(Sum(Product(Product(gain[j], dy[i]), r), Negated(Product(x[i], pull))));
      }
    }
    AddParameter(call.parameters[0], ColumnSums(dgain_terms, width));
    AddInput(call.inputs[0], dx);
  }

  void Backward(const NetCall& call) {
    const auto x = [&](size_t i) -> const Values& { return values_[call.inputs[i]]; };
    const auto p = [&](size_t i) -> const Values& { return weights_[call.parameters[i]]; };
    const Values dy = gradients_[call.outputs[0]];
    const size_t width = call.inputs.empty() ? 0 : Width(call.inputs[0]);
    const int input = call.inputs.empty() ? -1 : call.inputs[0];
    Values dx;
    switch (call.op) {
      case NetOp::kLinear:
        return LinearBackward(x(0), call.parameters[0], dy, width, input);
      case NetOp::kLinearGelu:
        return LinearBackward(x(0), call.parameters[0], HiddenGradient(call, dy), width, input);
      case NetOp::kMlp: {
        const Values activated = StoredActivated(call);
        const size_t inner = activated.size() / rows_;
        LinearBackward(activated, call.parameters[1], dy, inner, -1);
        Values dactivated;
        for (size_t row = 0; row < rows_; ++row) {
          for (size_t k = 0; k < inner; ++k) {
            SumOfProducts sum;
            for (size_t o = 0; o < width; ++o) sum.Add(dy[row * width + o], p(1)[o * inner + k]);
            dactivated.push_back(Stored(sum.sum(), net_.values[input].dtype));
          }
        }
        return LinearBackward(x(0), call.parameters[0], HiddenGradient(call, dactivated), width, input);
      }
      case NetOp::kRelu:
        // Where the sign of x is within its error, the gradient may be there or not.
        for (size_t i = 0; i < dy.size(); ++i) {
          Approximate d = x(0)[i].value > 0 ? dy[i] : Approximate();
          if (std::abs(x(0)[i].value) <= x(0)[i].error && x(0)[i].error > 0) d.error = Magnitude(dy[i]);
          dx.push_back(d);
        }
        return AddInput(input, dx);
      case NetOp::kGelu:
        for (size_t i = 0; i < dy.size(); ++i) dx.push_back(Product(dy[i], GeluDerivative(x(0)[i])));
        return AddInput(input, dx);
      case NetOp::kAdd:
        AddInput(call.inputs[0], dy);
        return AddInput(call.inputs[1], dy);
      case NetOp::kRmsNorm:
        return RmsNormBackward(call, x(0), p(0), dy);
      case NetOp::kBias:
        AddParameter(call.parameters[0], ColumnSums(dy, width));
        return AddInput(input, dy);
      case NetOp::kEmbedding: {
        const size_t columns = Width(call.outputs[0]);
        std::vector<SumOfProducts> sums(p(0).size());
        for (size_t i = 0; i < dy.size(); ++i) {
          const size_t id = static_cast<size_t>(batch_.integers[call.integers][i / columns]);
          sums[id * columns + i % columns].Add(dy[i], {1, 0});
        }
        for (const SumOfProducts& sum : sums) dx.push_back(sum.sum());
        return AddParameter(call.parameters[0], dx);
      }
      case NetOp::kPositions: {
        std::vector<SumOfProducts> sums(p(0).size());
        for (size_t i = 0; i < dy.size(); ++i) sums[PositionOf(i, width)].Add(dy[i], {1, 0});
        for (const SumOfProducts& sum : sums) dx.push_back(sum.sum());
        AddParameter(call.parameters[0], dx);
        return AddInput(input, dy);
      }
      case NetOp::kAttention:
        return AddInput(input, AttentionBackward(call, dy));
      case NetOp::kCrossEntropy:
        for (size_t row = 0; row < rows_; ++row) {
          const auto first = x(0).begin() + static_cast<std::ptrdiff_t>(row * width);
          Values softmax = Softmax(Values(first, first + static_cast<std::ptrdiff_t>(width)));
          Approximate& right = softmax[static_cast<size_t>(batch_.integers[call.integers][row])];
          right = Sum(right, {-1, 0});
          for (const Approximate& d : softmax) {
            dx.push_back(Product(dy[0], Times(d, 1 / static_cast<double>(rows_))));
          }
        }
        return AddInput(input, dx);
      case NetOp::kAffine: {
        Values products;
        for (size_t i = 0; i < dy.size(); ++i) {
          products.push_back(Product(dy[i], x(0)[i]));
          dx.push_back(Product(dy[i], p(0)[i % width]));
        }
        AddParameter(call.parameters[0], ColumnSums(products, width));
        AddParameter(call.parameters[1], ColumnSums(dy, width));
        return AddInput(input, dx);
      }
      case NetOp::kFork: {
        SumOfProducts sum;
        for (size_t i = 0; i < dy.size(); ++i) {
          sum.Add(dy[i], x(0)[i]);
          dx.push_back(Sum(Product(dy[i], p(0)[0]), gradients_[call.outputs[1]][i]));
        }
        AddParameter(call.parameters[0], {sum.sum()});
        return AddInput(input, dx);
      }
      case NetOp::kGate: {
        Values db;
        for (size_t i = 0; i < dy.size(); ++i) {
          dx.push_back(Product(dy[i], x(1)[i]));
          db.push_back(Product(dy[i], x(0)[i]));
        }
        AddInput(call.inputs[0], dx);
        return AddInput(call.inputs[1], db);
      }
      case NetOp::kSquares:
        for (const Approximate& a : x(0)) {
          dx.push_back(Product(dy[0], Times(a, 1 / static_cast<double>(x(0).size()))));
        }
        return AddInput(input, dx);
      case NetOp::kWeighted:
        for (size_t i = 0; i < call.inputs.size(); ++i) AddInput(call.inputs[i], {Product(dy[0], Fraction(i))});
        return;
    }
  }

  const Net& net_;
  const NetWeights& weights_;
  const NetBatch& batch_;
  size_t rows_;
  bool unbounded_ = false;
  std::vector<Values> values_, gradients_;
  absl::Span<const DType> gradient_dtypes_;
  NetWeights* parameter_gradients_ = nullptr;
};

}  // namespace

std::vector<std::vector<Approximate>> NetForward(const Net& net, const NetWeights& weights, const NetBatch& batch) {
  return NetLoop(net, weights, batch, {}).Forward();
}

std::vector<std::vector<Approximate>> NetBackward(const Net& net, const NetWeights& weights, const NetBatch& batch,
                                                  const std::vector<std::vector<Approximate>>& values,
                                                  double loss_scale, absl::Span<const DType> gradient_dtypes,
                                                  NetWeights& gradients) {
  return NetLoop(net, weights, batch, values).Backward(loss_scale, gradient_dtypes, gradients);
}

}  // namespace reprise::testing
