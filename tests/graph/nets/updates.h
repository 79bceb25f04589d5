// The optimizers of a training, by their formulas in double.
#ifndef REPRISE_TESTS_GRAPH_NETS_UPDATES_H_
#define REPRISE_TESTS_GRAPH_NETS_UPDATES_H_

#include <algorithm>
#include <cmath>
#include <variant>
#include <vector>

#include "reprise/graph/optimizers.h"
#include "tests/graph/nets/arithmetic.h"
#include "tests/graph/nets/net.h"

namespace reprise::testing {

// Of all parameters, one element at a time; the state lasts over steps. `optimizer` is borrowed.
class Updates {
 public:
  Updates(const Optimizer& optimizer, const Net& net) : optimizer_(optimizer) {
    for (const NetParameter& p : net.parameters) {
      first_.emplace_back(static_cast<size_t>(NumElements(p.spec.shape)));
      second_.emplace_back(first_.back().size());
    }
  }

  void NextStep() {
    ++steps_;
    if (const AdamW* adamw = std::get_if<AdamW>(&optimizer_)) FindLargestQuotient(*adamw);
  }

  // The new master, before it is stored.
  Approximate Update(size_t parameter, size_t i, double w, const Approximate& gradient, double rate) {
    Approximate &first = first_[parameter][i], &second = second_[parameter][i];
    if (const AdamW* adamw = std::get_if<AdamW>(&optimizer_)) {
      Blend(first, gradient, adamw->beta1);
      Blend(second, Product(gradient, gradient), adamw->beta2);
      return Moved(w, Quotient(*adamw, first, second), adamw->weight_decay, rate);
    }
    const Sgd& sgd = std::get<Sgd>(optimizer_);
    const double decayed = sgd.weight_decay * w;
    const Approximate g = {gradient.value + decayed,
                           gradient.error + 3 * kUnit * (Magnitude(gradient) + std::abs(decayed))};
    const Approximate kept = Product(first, {sgd.momentum, 0});
    first = {kept.value + g.value, kept.error + g.error + kUnit * (Magnitude(kept) + Magnitude(g))};
    return Moved(w, first, 0, rate);
  }

 private:
  static void Blend(Approximate& state, const Approximate& x, double beta) {
    const Approximate kept = Product(state, {beta, 0}), added = Product(x, {1 - beta, (1 - beta) * kUnit});
    // 2^-148: squares may underflow.
    state = {kept.value + added.value,
             kept.error + added.error + kUnit * (Magnitude(kept) + Magnitude(added)) + 0x1p-148};
  }

  // By Cauchy and Schwarz, |sum(a_k g_k)| <= sqrt(sum(a_k^2 / b_k)) sqrt(sum(b_k g_k^2)) for the weights a and b of the
  // two moments, whatever the gradients.
  void FindLargestQuotient(const AdamW& adamw) {
    double sum = 0;
    for (int k = 0; k < steps_; ++k) {
      const double a = (1 - adamw.beta1) * std::pow(adamw.beta1, k) / Correction(adamw.beta1);
      const double b = (1 - adamw.beta2) * std::pow(adamw.beta2, k) / Correction(adamw.beta2);
      sum += a * a / b;
    }
    largest_quotient_ = std::sqrt(sum);
  }
  double Correction(double beta) const { return 1 - std::pow(beta, steps_); }

  Approximate Quotient(const AdamW& adamw, const Approximate& first, const Approximate& second) const {
    const double m = first.value / Correction(adamw.beta1), v = second.value / Correction(adamw.beta2);
    const double m_error = first.error / Correction(adamw.beta1) + 4 * kUnit * std::abs(m);
    const double v_error = second.error / Correction(adamw.beta2) + 4 * kUnit * v;
    const double root = std::sqrt(v), highest = std::sqrt(v + v_error), lowest = std::sqrt(std::max(v - v_error, 0.0));
    const double below = root + adamw.epsilon;
    const double below_error = std::max(highest - root, root - lowest) + 4 * kUnit * (highest + adamw.epsilon);
    const double quotient = m / below;
    double error = 2 * largest_quotient_;
    if (below_error < below) {
      error = std::min(error, (m_error + std::abs(quotient) * below_error) / (below - below_error));
    }
    return {quotient, error + 4 * kUnit * std::abs(quotient)};
  }

  static Approximate Moved(double w, const Approximate& update, double decay, double rate) {
    const double whole = update.value + decay * w;
    return {w - rate * whole,
            rate * update.error + kUnit * ((decay == 0 ? 2 : 4) * std::abs(w) +
                                           8 * rate * (std::abs(update.value) + decay * std::abs(w)))};
  }

  const Optimizer& optimizer_;
  std::vector<Values> first_, second_;
  int steps_ = 0;
  double largest_quotient_ = 0;
};

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_NETS_UPDATES_H_
