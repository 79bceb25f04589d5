// Random nets in random settings: whatever a legal model and legal options are, sharded training on host ranks gives
// what a plain program in double precision gives, within bounds that the program carries.
//
// REPRISE_TEST_NETS=N runs N nets instead of 300, REPRISE_TEST_FIRST_NET=SEED starts at another seed, and either prints
// what the nets covered and how near to their bounds the differences came.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/graph/net_check.h"
#include "tests/graph/net_training.h"
#include "tests/graph/random_net.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  uint64_t number = 0;
  const char* const text = std::getenv(name);
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : otherwise;
}

// The nets of a run and what they did, counted by feature.
using Coverage = std::map<std::string, int64_t>;

bool AnyCall(const Net& net, const std::function<bool(const NetCall&)>& is) {
  return std::any_of(net.calls.begin(), net.calls.end(), is);
}
bool AnyParameter(const Net& net, const std::function<bool(const NetParameter&)>& is) {
  return std::any_of(net.parameters.begin(), net.parameters.end(), is);
}
bool AnyValue(const Net& net, const std::function<bool(const NetValue&)>& is) {
  return std::any_of(net.values.begin(), net.values.end(), is);
}

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
  count("wire of its own", AnyParameter(net, [](const NetParameter& p) { return p.spec.wire.has_value(); }));
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
  coverage[absl::StrCat("transport ", Name(plan.transport))] += 1;
  coverage[absl::StrCat("wire ", std::string(reprise::Name(plan.wire)))] += 1;
  coverage[absl::StrCat("masters ", std::string(reprise::Name(setting.master)))] += 1;
  count("transport choices", !plan.transport_choices.empty());
  coverage[absl::StrCat("microbatches per graph ", *plan.microbatches_per_graph)] += 1;
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
    return p.spec.dtype == DType::kBFloat16 || p.spec.wire == DType::kBFloat16;
  };
  return setting.train.run.plan.wire == DType::kFloat32 && !AnyParameter(net, narrow) &&
         !AnyValue(net, [](const NetValue& v) { return v.dtype == DType::kBFloat16; });
}

struct NetRun {
  NetComparison comparison;
  Coverage coverage;
  int64_t twins = 0;                 // trainings whose bits were compared with another's
  std::vector<double> sharpness[2];  // by net, bounds of gradients over gradients: float32 throughout, and others
};

// Fewer gradient slots than a call has units may do, or be refused: then there are as many.
absl::StatusOr<NetTrace> TrainWithEnoughSlots(const Net& net, NetSetting& setting, NetRun& run) {
  absl::StatusOr<NetTrace> trace = Train(net, setting);
  if (!absl::IsResourceExhausted(trace.status())) return trace;
  EXPECT_THAT(trace.status().message(), ::testing::HasSubstr("raise gradient_slots"));
  ++run.coverage["refused with too few gradient slots"];
  bool too_few = false;
  for (PlanOptions* plan : {&setting.train.run.plan, &setting.other_plan}) {
    too_few = too_few || plan->gradient_slots.value_or(2) < net.units_of_a_call();
    plan->gradient_slots = std::max(plan->gradient_slots.value_or(2), net.units_of_a_call());
  }
  EXPECT_TRUE(too_few) << net.ToString() << setting.ToString();
  return Train(net, setting);
}

void RunNet(uint64_t seed, NetRun& run) {
  const Net net = RandomNet(seed);
  Random random(seed ^ 0x5e77176);
  NetSetting setting = RandomNetSetting(net, random);
  CountNet(net, run.coverage);
  CountSetting(setting, run.coverage);
  const auto trace = TrainWithEnoughSlots(net, setting, run);
  const std::string description = absl::StrCat(net.ToString(), setting.ToString(), "\n");
  ASSERT_TRUE(trace.ok()) << description << trace.status();
  NetComparison comparison;
  CompareWithProgram(net, setting, *trace, comparison);
  EXPECT_THAT(comparison.failures, ::testing::IsEmpty()) << description;
  run.coverage["shared arena"] += trace->shared_arena ? 1 : 0;
  run.comparison.Add(comparison);
  const NetComparison::Kind& gradients = comparison.kinds["gradient"];
  if (gradients.values > 0) {
    run.sharpness[AllFloat32(net, setting) ? 0 : 1].push_back(gradients.bounds / gradients.values);
  }
  if (!random.Chance(50)) return;
  NetSetting twin_setting = WithTheSameBits(net, setting, random);
  const auto twin = TrainWithEnoughSlots(net, twin_setting, run);
  ASSERT_TRUE(twin.ok()) << net.ToString() << twin_setting.ToString() << "\n" << twin.status();
  EXPECT_TRUE(twin->Bytes() == trace->Bytes()) << description << twin_setting.ToString() << "\nother bits";
  ++run.twins;
}

double Median(std::vector<double> numbers) {
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

void Print(const NetRun& run) {
  for (const auto& [what, count] : run.coverage) std::cout << what << ": " << count << "\n";
  std::cout << "trainings compared bit for bit: " << run.twins << "\n";
  for (const int narrow : {0, 1}) {
    std::cout << "bounds over gradients, " << (narrow == 0 ? "float32" : "bfloat16") << ": median of "
              << run.sharpness[narrow].size() << " nets " << Median(run.sharpness[narrow]) << "\n";
  }
  for (const auto& [what, kind] : run.comparison.kinds) {
    std::cout << what << ": " << kind.numbers << " numbers, largest difference " << kind.largest << " of its bound, "
              << kind.unbounded << " without a bound\n";
  }
}

constexpr uint64_t kNets = 300;

TEST(RandomNetsTest, TrainingEqualsAnUnshardedProgram) {
  const bool chosen = std::getenv("REPRISE_TEST_NETS") != nullptr || std::getenv("REPRISE_TEST_FIRST_NET") != nullptr;
  const uint64_t first = FromEnvironment("REPRISE_TEST_FIRST_NET", 1);
  const uint64_t nets = FromEnvironment("REPRISE_TEST_NETS", kNets);
  NetRun run;
  for (uint64_t seed = first; seed < first + nets; ++seed) RunNet(seed, run);
  // A bound as large as what it bounds would let anything pass.
  EXPECT_LT(Median(run.sharpness[0]), 0x1p-12);
  EXPECT_LT(Median(run.sharpness[1]), 0x1p-2);
  if (chosen) return Print(run);
  for (const auto& [what, count] : run.coverage) EXPECT_GT(count, 0) << what;
}

}  // namespace
}  // namespace reprise::testing
