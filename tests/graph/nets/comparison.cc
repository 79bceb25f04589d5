#include "tests/graph/nets/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/graph/nets/arithmetic.h"
#include "tests/graph/nets/program.h"
#include "tests/graph/nets/updates.h"

namespace reprise::testing {
namespace {

// A sum over ranks and microbatches.
struct Total {
  double value = 0, error = 0, magnitude = 0;

  void Add(const Approximate& a) {
    value += a.value;
    error += a.error;
    magnitude += Magnitude(a);
  }
  Approximate DividedBy(double divisor, double roundings) const {
    return {value / divisor, (error + roundings * magnitude) / divisor};
  }
};

class Comparison {
 public:
  Comparison(const Net& net, const NetSetting& setting, const NetTrace& trace, NetComparison& result)
      : net_(net),
        setting_(setting),
        trace_(trace),
        result_(result),
        updates_{{setting.train.optimizer, net}, {setting.train.optimizer, net}} {
    for (const NetParameter& p : net.parameters) {
      const bool full = setting.train.run.plan.reduce == Reduce::kOncePerStep;
      gradient_dtypes_.push_back(full ? DType::kFloat32 : p.spec.dtype);
    }
  }

  void Run() {
    last_ = &trace_.initial;
    for (size_t p = 0; p < net_.parameters.size(); ++p) {
      ExpectSame("initial", p, trace_.initial[p], Mastered(NetParameterValues(net_, static_cast<int>(p), 0)));
    }
    for (size_t s = 0; s < trace_.steps.size(); ++s) {
      where_ = absl::StrCat("step ", s, ": ");
      Step(s);
    }
  }

 private:
  void Fail(const std::string& what) { result_.failures.push_back(absl::StrCat(where_, what)); }

  // 2^-120 absolute: denormal numbers.
  void Expect(const std::string& kind, float got, const Approximate& want, const std::string& where) {
    NetComparison::Kind& k = result_.kinds[kind];
    ++k.numbers;
    if (!(Magnitude(want) < kLargestBounded)) {
      ++k.unbounded;
      return;
    }
    const double difference = std::abs(got - want.value), bound = want.error + 0x1p-120;
    k.bounds += bound;
    k.values += std::abs(want.value);
    if (!(difference <= bound)) {
      Fail(absl::StrCat(kind, " ", where, " is ", got, ", the program has ", want.value, " within ", bound));
    }
    k.largest =
        std::max(k.largest, std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference / bound);
  }
  void Expect(const std::string& kind, const std::vector<float>& got, const Values& want, const std::string& where) {
    if (got.size() != want.size()) return Fail(absl::StrCat(kind, " ", where, " has ", got.size(), " elements"));
    for (size_t i = 0; i < got.size(); ++i) Expect(kind, got[i], want[i], absl::StrCat(where, "[", i, "]"));
  }
  void ExpectSame(const std::string& kind, size_t p, const std::vector<float>& got, const std::vector<float>& want) {
    if (got != want) Fail(absl::StrCat(kind, " ", net_.parameters[p].spec.name, " has changed or was not written"));
    ++result_.kinds[kind].numbers;
  }

  std::vector<float> Mastered(std::vector<float> values) const {
    if (setting_.master == DType::kBFloat16) {
      for (float& value : values) value = float(BFloat16(value));
    }
    return values;
  }

  // What compute reads.
  NetWeights WeightsOf(const std::vector<std::vector<float>>& masters) const {
    NetWeights weights(masters.size());
    for (size_t p = 0; p < masters.size(); ++p) {
      const bool rounds = net_.parameters[p].spec.dtype == DType::kBFloat16;
      for (const float value : masters[p]) weights[p].push_back({rounds ? float(BFloat16(value)) : value, 0});
    }
    return weights;
  }

  void Step(size_t s) {
    const NetStep& step = setting_.steps[s];
    const NetStepTrace& trace = trace_.steps[s];
    for (size_t p = 0; p < net_.parameters.size(); ++p) {
      ExpectKept(p, step.writes, WriteBefore(static_cast<int64_t>(s)), *last_, trace.before);
    }
    if (step.discard_after >= 0) {
      if (!trace.metrics.empty()) Fail("a discarded step has metrics");
      ExpectUnchanged(trace);
    } else if (step.infinite) {
      SkippedStep(step, trace);
      ++ended_[step.session];
    } else {
      TrainedStep(s, step, trace);
      ++ended_[step.session];
    }
    last_ = &trace.after;
    for (size_t e = 0; e < trace.evaluations.size(); ++e) Evaluation(s, e, trace.evaluations[e]);
  }

  // Where `written` is another parameter, it has its last values.
  void ExpectKept(size_t p, int written, int64_t write, const std::vector<std::vector<float>>& last,
                  const std::vector<std::vector<float>>& now) {
    const bool is_written = written == static_cast<int>(p);
    ExpectSame("kept", p, now[p], is_written ? Mastered(NetParameterValues(net_, written, write)) : last[p]);
  }

  void ExpectUnchanged(const NetStepTrace& trace) {
    for (size_t p = 0; p < net_.parameters.size(); ++p) ExpectSame("unchanged", p, trace.after[p], trace.before[p]);
  }

  // Where the infinite element reaches no gradient, the optimizer's state is no longer known.
  void SkippedStep(const NetStep& step, const NetStepTrace& trace) {
    const bool finite = AllFinite(trace.gradients);
    if (trace.metrics.size() != 1) return Fail("metrics are missing");
    if (trace.metrics[0].skipped == finite) {
      Fail(absl::StrCat("gradients are ", finite ? "finite" : "not finite", ", skipped ", trace.metrics[0].skipped));
    }
    if (finite) updates_known_[step.session] = false;
    if (!finite) ExpectUnchanged(trace);
    ++result_.kinds[finite ? "infinite inputs" : "skipped"].numbers;
    ExpectFound(step, trace.non_finite);
  }
  // The infinite element is in the step's first microbatch, and looked for in its last graph.
  void ExpectFound(const NetStep& step, const std::string& found) {
    const PlanOptions& plan = step.session == 0 ? setting_.train.run.plan : setting_.other_plan;
    const auto holds_it = [](const NetValue& value) { return value.kind == TensorKind::kInput; };
    const bool in_last_graph = step.values.microbatches == *plan.microbatches_per_graph &&
                               std::any_of(net_.values.begin(), net_.values.end(), holds_it);
    if (!setting_.asks || !in_last_graph) return;
    const std::string rank = absl::StrCat("on rank ", setting_.world.size - 1, " element 0 of ");
    if (!absl::StrContains(found, rank) || !absl::StrContains(found, " is inf before any call has run on it")) {
      Fail(absl::StrCat("infinite input: ", found));
    }
    ++result_.kinds["infinite input found"].numbers;
  }
  static bool AllFinite(const std::vector<std::vector<float>>& lists) {
    for (const std::vector<float>& list : lists) {
      if (!std::all_of(list.begin(), list.end(), [](float value) { return std::isfinite(value); })) return false;
    }
    return true;
  }

  void TrainedStep(size_t s, const NetStep& step, const NetStepTrace& trace) {
    const NetWeights weights = WeightsOf(trace.before);
    const int ranks = setting_.world.size, microbatches = step.values.microbatches;
    const bool once = setting_.train.run.plan.reduce == Reduce::kOncePerStep;
    Total loss;
    std::vector<std::vector<Total>> totals;
    for (const Values& w : weights) totals.emplace_back(w.size());
    for (int rank = 0; rank < ranks; ++rank) {
      NetWeights gradients(weights.size());
      for (int m = 0; m < microbatches; ++m) {
        const NetBatch batch = MakeBatch(net_, static_cast<int64_t>(s), m, rank);
        const std::vector<Values> values = NetForward(net_, weights, batch);
        const std::vector<Values> value_gradients =
            NetBackward(net_, weights, batch, values, setting_.train.loss_scale, gradient_dtypes_, gradients);
        loss.Add(values[net_.loss][0]);
        if (m + 1 == microbatches) Tensors(rank, trace, values, value_gradients);
        if (once && m + 1 < microbatches) continue;
        for (size_t p = 0; p < totals.size(); ++p) {
          for (size_t i = 0; i < gradients[p].size(); ++i) totals[p][i].Add(gradients[p][i]);
        }
        gradients.assign(weights.size(), {});
      }
    }
    if (trace.metrics.size() != 1) return Fail("metrics are missing");
    const StepMetrics& metrics = trace.metrics[0];
    if (metrics.step != ended_[step.session])
      Fail(absl::StrCat("metrics are of step ", metrics.step, " instead of ", ended_[step.session]));
    if (metrics.loss_scale != setting_.train.loss_scale) Fail("another loss scale");
    Expect("loss", metrics.loss, loss.DividedBy(ranks * microbatches, 2 * kUnit), "");
    const NetWeights gradients = Gradients(step, trace, totals);
    if (metrics.skipped) {
      // Numbers that have no bound may have overflowed.
      const bool justified = step.reads_gradients ? !AllFinite(trace.gradients) : !Bounded(gradients);
      if (!justified) Fail("skipped");
      return ExpectUnchanged(trace);
    }
    const Approximate norm = Norm(gradients);
    Expect("norm", metrics.gradient_norm, norm, "");
    Parameters(step, trace, gradients, norm);
  }

  void Tensors(int rank, const NetStepTrace& trace, const std::vector<Values>& values,
               const std::vector<Values>& gradients) {
    for (size_t v = 0; v < net_.values.size(); ++v) {
      const std::string where = absl::StrCat(net_.values[v].name, " of rank ", rank);
      if (net_.values[v].kind == TensorKind::kOutput) Expect("output", trace.outputs[rank][v], values[v], where);
      if (net_.values[v].keep_gradient) {
        // 0 where no call read it.
        const Values zero(values[v].size());
        Expect("input gradient", trace.input_gradients[rank][v], gradients[v].empty() ? zero : gradients[v], where);
      }
    }
  }

  // The divided gradients; where they were read, these.
  NetWeights Gradients(const NetStep& step, const NetStepTrace& trace, const std::vector<std::vector<Total>>& totals) {
    const int ranks = setting_.world.size, microbatches = step.values.microbatches;
    const double mean = ranks * microbatches;
    const double divisor =
        (step.values.gradient_divisor == 0 ? mean : step.values.gradient_divisor) * setting_.train.loss_scale;
    NetWeights gradients(totals.size());
    for (size_t p = 0; p < totals.size(); ++p) {
      const ParameterSpec& spec = net_.parameters[p].spec;
      if (!spec.trainable) continue;
      const double reduce_dtype = Epsilon(spec.reduce_dtype.value_or(setting_.train.run.plan.reduce_dtype));
      const double roundings = (1 + ranks) * reduce_dtype + (ranks + microbatches + 3) * kUnit;
      for (const Total& total : totals[p]) gradients[p].push_back(total.DividedBy(divisor, roundings));
      if (!step.reads_gradients) continue;
      Expect("gradient", trace.gradients[p], gradients[p], spec.name);
      for (size_t i = 0; i < gradients[p].size() && i < trace.gradients[p].size(); ++i) {
        const double value = trace.gradients[p][i];
        if (std::abs(value) < kLargestBounded) gradients[p][i] = {value, 2 * kUnit * std::abs(value)};
      }
    }
    return gradients;
  }

  static bool Bounded(const NetWeights& gradients) {
    for (const Values& parameter : gradients) {
      for (const Approximate& g : parameter) {
        if (!std::isfinite(g.error)) return false;
      }
    }
    return true;
  }

  static Approximate Norm(const NetWeights& gradients) {
    double squares = 0, errors = 0;
    for (const Values& parameter : gradients) {
      for (const Approximate& g : parameter) {
        squares += g.value * g.value;
        errors += g.error * g.error;
      }
    }
    const double norm = std::sqrt(squares);
    return {norm, std::sqrt(errors) + 2 * kUnit * norm};
  }

  Approximate ClipFactor(const Approximate& norm) const {
    if (!setting_.train.clip_norm.has_value()) return {1, 0};
    const double clip = *setting_.train.clip_norm;
    const auto factor = [&](double n) { return n > clip ? clip / n : 1; };
    const double value = factor(norm.value), high = factor(norm.value - norm.error);
    const double low = factor(norm.value + norm.error);
    return {value, std::max(high - value, value - low) + 2 * kUnit * value};
  }

  void Parameters(const NetStep& step, const NetStepTrace& trace, const NetWeights& gradients,
                  const Approximate& norm) {
    const Approximate clip = ClipFactor(norm);
    Updates& updates = updates_[step.session];
    updates.NextStep();
    for (size_t p = 0; p < net_.parameters.size(); ++p) {
      if (!net_.parameters[p].spec.trainable) {
        ExpectSame("frozen", p, trace.after[p], trace.before[p]);
        continue;
      }
      Values want;
      for (size_t i = 0; i < gradients[p].size(); ++i) {
        const Approximate after =
            updates.Update(p, i, trace.before[p][i], Product(gradients[p][i], clip), *step.values.learning_rate);
        want.push_back(setting_.master == DType::kBFloat16 ? Stored(after, DType::kBFloat16) : after);
      }
      if (updates_known_[step.session]) Expect("parameter", trace.after[p], want, net_.parameters[p].spec.name);
    }
  }

  void Evaluation(size_t s, size_t e, const NetStepTrace::Evaluation& evaluation) {
    const int64_t step = static_cast<int64_t>(s);
    const int written = e == 1 ? setting_.steps[s].writes_between : -1;
    for (size_t p = 0; p < net_.parameters.size(); ++p) {
      ExpectKept(p, written, WriteBetween(step), *last_, evaluation.parameters);
    }
    last_ = &evaluation.parameters;
    const NetWeights weights = WeightsOf(evaluation.parameters);
    for (int rank = 0; rank < setting_.world.size; ++rank) {
      const Values loss = NetForward(net_, weights, EvaluationBatch(net_, step, rank))[net_.loss];
      Expect("evaluation", evaluation.losses[rank], loss[0], absl::StrCat(e, " of rank ", rank));
    }
  }

  const Net& net_;
  const NetSetting& setting_;
  const NetTrace& trace_;
  NetComparison& result_;
  // By session.
  Updates updates_[2];
  bool updates_known_[2] = {true, true};
  int64_t ended_[2] = {};  // steps that were not discarded
  std::vector<DType> gradient_dtypes_;
  std::string where_;
  const std::vector<std::vector<float>>* last_ = nullptr;  // parameters as last read
};

}  // namespace

void NetComparison::Add(const NetComparison& other) {
  for (const auto& [name, kind] : other.kinds) {
    Kind& sum = kinds[name];
    sum.numbers += kind.numbers;
    sum.largest = std::max(sum.largest, kind.largest);
    sum.bounds += kind.bounds;
    sum.values += kind.values;
    sum.unbounded += kind.unbounded;
  }
  failures.insert(failures.end(), other.failures.begin(), other.failures.end());
}

void CompareWithProgram(const Net& net, const NetSetting& setting, const NetTrace& trace, NetComparison& result) {
  Comparison(net, setting, trace, result).Run();
}

}  // namespace reprise::testing
