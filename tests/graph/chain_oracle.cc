#include "tests/graph/chain_oracle.h"

#include <algorithm>
#include <cmath>

namespace reprise::testing {
namespace {

struct Matrix {
  size_t rows = 0, columns = 0;
  std::vector<Approximate> values = std::vector<Approximate>(rows * columns);

  Approximate& at(size_t i, size_t j) { return values[i * columns + j]; }
  const Approximate& at(size_t i, size_t j) const { return values[i * columns + j]; }
};

// The calls of a chain, one kind of arithmetic each; kLinearRelu is two of them.
class ChainLoop {
 public:
  ChainLoop(const Chain& chain, const ChainWeights& weights) : chain_(chain), weights_(weights) {
    for (const std::vector<Approximate>& parameter : weights) gradient_.parameters.emplace_back(parameter.size());
    for (const ChainCall& call : chain.spec.calls) {
      if (call.kind == ChainCall::Kind::kLinearRelu) {
        calls_.push_back({.kind = ChainCall::Kind::kLinear, .weight = call.weight});
        calls_.push_back({.kind = ChainCall::Kind::kRelu});
      } else {
        calls_.push_back(call);
      }
    }
  }

  ChainGradient Run(const Batch& batch) {
    Matrix x = {static_cast<size_t>(chain_.spec.rows), static_cast<size_t>(chain_.spec.width)};
    for (size_t i = 0; i < x.values.size(); ++i) x.values[i].value = batch.features[i];
    std::vector<Matrix> inputs;
    for (const ChainCall& call : calls_) {
      inputs.push_back(x);
      x = Forward(call, x);
    }
    Matrix dy = Loss(x, batch.labels);
    for (size_t i = calls_.size(); i-- > 0;) dy = Backward(calls_[i], inputs[i], dy);
    return gradient_;
  }

 private:
  Approximate Round(const Approximate& a) const { return Stored(a, chain_.dtype); }
  size_t IndexOf(const std::string& parameter) const {
    return static_cast<size_t>(chain_.model.FindParameter(parameter)->value());
  }
  // The gradient's dtype is the parameter's, or float32, which rounds less. A device may round what it adds too.
  void AddGradient(size_t parameter, size_t element, const Approximate& term) {
    const ParameterSpec& spec = chain_.model.parameters()[parameter].spec;
    if (!spec.trainable) return;
    Approximate& sum = gradient_.parameters[parameter][element];
    const Approximate added = sum.value == 0 ? term : Stored(term, spec.dtype);
    sum = Stored({sum.value + added.value, sum.error + added.error}, spec.dtype);
  }

  Matrix Forward(const ChainCall& call, const Matrix& x) const {
    Matrix y = {x.rows, x.columns};
    switch (call.kind) {
      case ChainCall::Kind::kRelu:
        for (size_t i = 0; i < x.values.size(); ++i)
          y.values[i] = {std::max(x.values[i].value, 0.0), x.values[i].error};
        break;
      case ChainCall::Kind::kAffine:
        for (size_t i = 0; i < x.values.size(); ++i) {
          SumOfProducts sum;
          sum.Add(x.values[i], weights_[IndexOf(call.weight)][i % x.columns]);
          sum.Add({1, 0}, weights_[IndexOf(call.shift)][i % x.columns]);
          y.values[i] = Round(sum.sum());
        }
        break;
      case ChainCall::Kind::kLinear:
      case ChainCall::Kind::kLinearRelu: {
        const std::vector<Approximate>& w = weights_[IndexOf(call.weight)];
        y = {x.rows, w.size() / x.columns};
        for (size_t i = 0; i < y.values.size(); ++i) {
          SumOfProducts sum;
          for (size_t k = 0; k < x.columns; ++k) {
            sum.Add(x.at(i / y.columns, k), w[i % y.columns * x.columns + k]);
          }
          y.values[i] = Round(sum.sum());
        }
        break;
      }
    }
    return y;
  }

  Matrix Backward(const ChainCall& call, const Matrix& x, const Matrix& dy) {
    switch (call.kind) {
      case ChainCall::Kind::kRelu:
        return ReluBackward(x, dy);
      case ChainCall::Kind::kAffine:
        return AffineBackward(IndexOf(call.weight), IndexOf(call.shift), x, dy);
      case ChainCall::Kind::kLinear:
      case ChainCall::Kind::kLinearRelu:
        return LinearBackward(IndexOf(call.weight), x, dy);
    }
    return {};
  }

  // Where the sign of x is within its error, the gradient may be there or not.
  static Matrix ReluBackward(const Matrix& x, const Matrix& dy) {
    Matrix dx = {x.rows, x.columns};
    for (size_t i = 0; i < x.values.size(); ++i) {
      const auto& [value, error] = x.values[i];
      if (value > 0) dx.values[i] = dy.values[i];
      if (std::abs(value) <= error && error > 0) dx.values[i].error = Magnitude(dy.values[i]);
    }
    return dx;
  }

  Matrix AffineBackward(size_t scale, size_t shift, const Matrix& x, const Matrix& dy) {
    Matrix dx = {x.rows, x.columns};
    for (size_t j = 0; j < x.columns; ++j) {
      SumOfProducts scale_sum, shift_sum;
      for (size_t i = 0; i < x.rows; ++i) {
        scale_sum.Add(dy.at(i, j), x.at(i, j));
        shift_sum.Add(dy.at(i, j), {1, 0});
        SumOfProducts product;
        product.Add(dy.at(i, j), weights_[scale][j]);
        dx.at(i, j) = Round(product.sum());
      }
      AddGradient(scale, j, scale_sum.sum());
      AddGradient(shift, j, shift_sum.sum());
    }
    return dx;
  }

  Matrix LinearBackward(size_t weight, const Matrix& x, const Matrix& dy) {
    Matrix dx = {x.rows, x.columns};
    for (size_t k = 0; k < x.columns; ++k) {
      for (size_t o = 0; o < dy.columns; ++o) {
        SumOfProducts sum;
        for (size_t i = 0; i < x.rows; ++i) sum.Add(dy.at(i, o), x.at(i, k));
        AddGradient(weight, o * x.columns + k, sum.sum());
      }
      for (size_t i = 0; i < x.rows; ++i) {
        SumOfProducts sum;
        for (size_t o = 0; o < dy.columns; ++o) sum.Add(dy.at(i, o), weights_[weight][o * x.columns + k]);
        dx.at(i, k) = Round(sum.sum());
      }
    }
    return dx;
  }

  // Logits within e of their values change log(sum(exp)) by at most e and a softmax p by at most p (exp(2 e) - 1). In
  // float32, differences of logits up to `range`, exp, the sum over classes and the quotient or logarithm add
  // (range + classes + 16) 2^-24 relative to what is added up.
  Matrix Loss(const Matrix& logits, const std::vector<int32_t>& labels) {
    Matrix dx = {logits.rows, logits.columns};
    const double rows = static_cast<double>(logits.rows);
    for (size_t i = 0; i < logits.rows; ++i) {
      double total = 0, largest = 0, error = 0;
      for (size_t j = 0; j < logits.columns; ++j) {
        total += std::exp(logits.at(i, j).value);
        largest = std::max(largest, std::abs(logits.at(i, j).value));
        error = std::max(error, logits.at(i, j).error);
      }
      const double roundings = (2 * largest + static_cast<double>(logits.columns) + 16) * 0x1p-24;
      const size_t label = static_cast<size_t>(labels[i]);
      gradient_.loss.value += (std::log(total) - logits.at(i, label).value) / rows;
      gradient_.loss.error += (2 * error + roundings * (1 + std::abs(std::log(total)) + largest)) / rows;
      for (size_t j = 0; j < logits.columns; ++j) {
        const double p = std::exp(logits.at(i, j).value) / total;
        dx.at(i, j) =
            Round({(p - (j == label ? 1 : 0)) / rows, (p * std::expm1(2 * error) + roundings * (p + 1)) / rows});
      }
    }
    return dx;
  }

  const Chain& chain_;
  std::vector<ChainCall> calls_;
  const ChainWeights& weights_;
  ChainGradient gradient_;
};

// The mean over ranks and microbatches. Each gradient g_i within e_i is rounded to the reduce dtype, the ranks' are
// added there (default transport) or in float32, and both sums and the division are in float32:
//   error = (sum(e_i) + ((1 + ranks) u_reduce + (ranks + microbatches + 2) 2^-24) sum(|g_i| + e_i)) / n.
struct Mean {
  double value = 0, error = 0, magnitude = 0;

  void Add(const Approximate& a) {
    value += a.value;
    error += a.error;
    magnitude += Magnitude(a);
  }
  Approximate Result(const Averaging& averaging, DType reduce_dtype) const {
    const int ranks = averaging.world_size;
    const double n = ranks * averaging.microbatches;
    const double roundings = (1 + ranks) * Epsilon(reduce_dtype) + (ranks + averaging.microbatches + 2) * 0x1p-24;
    return {value / n, (error + roundings * magnitude) / n};
  }
};

}  // namespace

ChainWeights WeightsOf(const Chain& chain, const std::vector<std::vector<float>>& masters) {
  ChainWeights weights(masters.size());
  for (size_t p = 0; p < masters.size(); ++p) {
    const bool rounds = chain.model.parameters()[p].spec.dtype == DType::kBFloat16;
    for (const float value : masters[p]) weights[p].push_back({rounds ? float(BFloat16(value)) : value, 0});
  }
  return weights;
}

ChainGradient Differentiate(const Chain& chain, const ChainWeights& weights, const Batch& batch) {
  return ChainLoop(chain, weights).Run(batch);
}

ChainGradient MeanGradient(const Chain& chain, const ChainWeights& weights, int64_t step, const Averaging& averaging) {
  Mean loss;
  std::vector<std::vector<Mean>> means;
  for (const std::vector<Approximate>& parameter : weights) means.emplace_back(parameter.size());
  for (int m = 0; m < averaging.microbatches; ++m) {
    for (int rank = 0; rank < averaging.world_size; ++rank) {
      const ChainGradient one = Differentiate(chain, weights, MakeBatch(chain, step, m, rank));
      loss.Add(one.loss);
      for (size_t p = 0; p < means.size(); ++p) {
        for (size_t i = 0; i < means[p].size(); ++i) means[p][i].Add(one.parameters[p][i]);
      }
    }
  }
  ChainGradient result;
  result.loss = loss.Result(averaging, DType::kFloat32);
  for (const std::vector<Mean>& parameter : means) {
    result.parameters.emplace_back();
    for (const Mean& mean : parameter)
      result.parameters.back().push_back(mean.Result(averaging, averaging.reduce_dtype));
  }
  return result;
}

}  // namespace reprise::testing
