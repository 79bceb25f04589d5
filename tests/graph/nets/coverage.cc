#include "tests/graph/nets/coverage.h"

#include <algorithm>
#include <functional>
#include <set>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"

namespace reprise::testing {
namespace {

bool AnyCall(const Net& net, const std::function<bool(const NetCall&)>& is) {
  return std::any_of(net.calls.begin(), net.calls.end(), is);
}
bool AnyParameter(const Net& net, const std::function<bool(const NetParameter&)>& is) {
  return std::any_of(net.parameters.begin(), net.parameters.end(), is);
}
bool AnyValue(const Net& net, const std::function<bool(const NetValue&)>& is) {
  return std::any_of(net.values.begin(), net.values.end(), is);
}

}  // namespace

void CountNet(const Net& net, Coverage& coverage) {
  ++coverage["nets"];
  coverage["calls"] += static_cast<int64_t>(net.calls.size());
  std::vector<int> uses(net.parameters.size()), readers(net.values.size());
  std::map<int, int> calls_by_unit;
  bool twice = false, backwards = false;
  int last_unit = -1;
  for (const NetCall& call : net.calls) {
    std::set<int> units;
    for (const int p : call.parameters) {
      ++uses[p];
      units.insert(net.parameters[p].unit);
    }
    for (const int unit : units) ++calls_by_unit[unit];
    for (const int v : call.inputs) ++readers[v];
    twice = twice || (call.op == NetOp::kMlp && call.parameters[0] == call.parameters[1]);
    if (!units.empty()) {
      backwards = backwards || *units.begin() < last_unit;
      last_unit = *units.begin();
    }
  }
  const auto count = [&](const std::string& what, bool has) { coverage[what] += has ? 1 : 0; };
  for (int op = 0; op < kNumNetOps; ++op) {
    const NetOp wanted = static_cast<NetOp>(op);
    count(absl::StrCat("op ", Name(wanted)), AnyCall(net, [&](const NetCall& c) { return c.op == wanted; }));
  }
  count("20 calls or more", net.calls.size() >= 20);
  const auto several = [](int n) { return n > 1; };
  count("tied parameter", std::any_of(uses.begin(), uses.end(), several));
  count("parameter twice in a call", twice);
  count("branch", std::any_of(readers.begin(), readers.end(), several));
  count("several calls of a unit",
        std::any_of(calls_by_unit.begin(), calls_by_unit.end(), [](const auto& unit) { return unit.second > 1; }));
  count("several units of a call", net.units_of_a_call() > 1);
  count("units out of order", backwards);
  count("whole unit", AnyCall(net, [](const NetCall& c) { return !c.whole_units.empty() && !c.forward_only; }));
  count("forward-only unit", AnyCall(net, [](const NetCall& c) { return !c.whole_units.empty() && c.forward_only; }));
  count("recompute", AnyCall(net, [](const NetCall& c) { return c.recompute; }));
  count("several losses", AnyCall(net, [](const NetCall& c) { return c.op == NetOp::kWeighted; }));
  count("frozen parameter", AnyParameter(net, [](const NetParameter& p) { return !p.spec.trainable; }));
  count("unused parameter", AnyParameter(net, [](const NetParameter& p) { return p.allow_unused; }));
  count("reduce_dtype of its own",
        AnyParameter(net, [](const NetParameter& p) { return p.spec.reduce_dtype.has_value(); }));
  count("parameter without elements",
        AnyParameter(net, [](const NetParameter& p) { return NumElements(p.spec.shape) == 0; }));
  count("kept input gradient", AnyValue(net, [](const NetValue& v) { return v.keep_gradient; }));
  count("external input", AnyValue(net, [](const NetValue& v) { return v.external; }));
  const bool wide = AnyValue(net, [](const NetValue& v) { return !v.scalar && v.dtype == DType::kFloat32; });
  const bool narrow = AnyValue(net, [](const NetValue& v) { return v.dtype == DType::kBFloat16; });
  count("f32 only", !narrow);
  count("bf16", narrow && !wide);
  count("both dtypes", narrow && wide);
}

void CountSetting(const NetSetting& setting, Coverage& coverage) {
  const auto count = [&](const std::string& what, bool has) { coverage[what] += has ? 1 : 0; };
  const PlanOptions& plan = setting.train.run.plan;
  coverage[absl::StrCat("world size ", setting.world.size)] += 1;
  constexpr const char* kOrders[] = {"issue", "adversarial", "threads"};
  coverage[absl::StrCat("order ", kOrders[static_cast<int>(setting.world.order)])] += 1;
  for (const TransportChoice& choice : plan.transports) {
    coverage[absl::StrCat("gather ", Name(choice.transports.gather))] += 1;
    coverage[absl::StrCat("exchange ", Name(choice.transports.exchange))] += 1;
  }
  coverage[absl::StrCat("sum ", Name(plan.sum.value_or(Sum::kRankOrder)))] += 1;
  coverage[absl::StrCat("reduce_dtype ", std::string(reprise::Name(plan.reduce_dtype)))] += 1;
  coverage[absl::StrCat("masters ", std::string(reprise::Name(setting.master)))] += 1;
  count("several transports", plan.transports.size() > 1);
  count("transports of the world", plan.transports.empty());
  coverage[absl::StrCat("microbatches per graph ", *plan.microbatches_per_graph)] += 1;
  count("one weight slot", plan.weight_slots == 1);
  count("one gradient slot", plan.gradient_slots == 1);
  count("no prefetch", plan.prefetch_depth == 0);
  count("reduced once per step", plan.reduce == Reduce::kOncePerStep);
  count("carried tail", plan.tail == Tail::kCarried);
  count("residency off", plan.residency == Residency::kOff);
  count("eager", setting.train.run.execution == Execution::kEager);
  count("AdamW", std::holds_alternative<AdamW>(setting.train.optimizer));
  count("SGD", std::holds_alternative<Sgd>(setting.train.optimizer));
  count("clipped", setting.train.clip_norm.has_value());
  count("loss scale", setting.train.loss_scale != 1);
  count("MarkParametersChanged", setting.marks_changed);
  count("two training sessions",
        std::any_of(setting.steps.begin(), setting.steps.end(), [](const NetStep& step) { return step.session == 1; }));
  for (const NetStep& step : setting.steps) {
    ++coverage["steps"];
    coverage["microbatches"] += step.values.microbatches;
    count("discarded steps", step.discard_after >= 0);
    count("steps with infinite inputs", step.infinite);
    count("writes between steps", step.writes >= 0);
    coverage["evaluations between steps"] += step.evaluations;
    count("writes between evaluations", step.writes_between >= 0);
    count("divisors", step.values.gradient_divisor != 0);
  }
}

bool AllFloat32(const Net& net, const NetSetting& setting) {
  const auto narrow = [](const NetParameter& p) {
    return p.spec.dtype == DType::kBFloat16 || p.spec.reduce_dtype == DType::kBFloat16;
  };
  return setting.train.run.plan.reduce_dtype == DType::kFloat32 && !AnyParameter(net, narrow) &&
         !AnyValue(net, [](const NetValue& v) { return v.dtype == DType::kBFloat16; });
}

}  // namespace reprise::testing
