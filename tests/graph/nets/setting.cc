#include "tests/graph/nets/setting.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <variant>

#include "absl/strings/str_cat.h"

namespace reprise::testing {
namespace {

template <class T>
T OneOf(Random& random, std::initializer_list<T> values) {
  return values.begin()[random.Below(static_cast<int64_t>(values.size()))];
}

bool HasExternal(const Net& net) {
  for (const NetValue& value : net.values) {
    if (value.external) return true;
  }
  return false;
}

// What changes no bit.
void DrawPlan(const Net& net, Random& random, const std::vector<NetStep>& steps, PlanOptions& plan) {
  plan.weight_slots.reset();
  plan.gradient_slots.reset();
  plan.prefetch_depth.reset();
  const int fewest = net.units_of_a_call();
  if (fewest > 2 || random.Chance(70)) plan.weight_slots = fewest + static_cast<int>(random.Below(3));
  if (random.Chance(70)) plan.gradient_slots = static_cast<int>(1 + random.Below(4));
  if (random.Chance(70)) plan.prefetch_depth = static_cast<int>(random.Below(4));
  plan.residency = OneOf(random, {Residency::kKeep, Residency::kOff});
  plan.tail = Tail::kInGraph;
  // A carried tail needs a reduction in every graph.
  if (plan.reduce == Reduce::kEveryMicrobatch && random.Chance(40)) plan.tail = Tail::kCarried;
  int per_graph = static_cast<int>(1 + random.Below(3));
  for (const NetStep& step : steps) {
    if (step.values.microbatches % per_graph != 0) per_graph = 1;
  }
  plan.microbatches_per_graph = HasExternal(net) ? 1 : per_graph;
}

void DrawMechanics(const Net& net, Random& random, NetSetting& setting) {
  setting.world.order =
      OneOf(random, {ReplayOrder::kIssue, ReplayOrder::kAdversarial, ReplayOrder::kAdversarial, ReplayOrder::kThreads});
  setting.world.seed = random.Next();
  DrawPlan(net, random, setting.steps, setting.train.run.plan);
  setting.other_plan = setting.train.run.plan;
  DrawPlan(net, random, setting.steps, setting.other_plan);
  setting.train.run.execution = random.Chance(75) ? Execution::kGraph : Execution::kEager;
  setting.train.run.check_writes = random.Chance(50);
  setting.forward.plan.weight_slots = setting.train.run.plan.weight_slots;
  setting.forward.plan.residency = OneOf(random, {Residency::kKeep, Residency::kOff});
  setting.shares_arena = random.Chance(60);
  setting.marks_changed = random.Chance(15);
  setting.asks = random.Chance(60);
}

Optimizer DrawOptimizer(Random& random) {
  if (random.Chance(50)) {
    return Sgd{.momentum = OneOf(random, {0.0f, 0.5f, 0.9f}), .weight_decay = OneOf(random, {0.0f, 0.01f, 0.5f})};
  }
  return AdamW{.beta1 = OneOf(random, {0.9f, 0.5f, 0.0f}),
               .beta2 = OneOf(random, {0.999f, 0.9f, 0.99f}),
               .epsilon = OneOf(random, {1e-8f, 1e-4f, 0.1f}),
               .weight_decay = OneOf(random, {0.0f, 0.01f, 0.5f})};
}

int DrawParameter(const Net& net, Random& random) {
  return static_cast<int>(random.Below(static_cast<int64_t>(net.parameters.size())));
}

void DrawSteps(const Net& net, Random& random, NetSetting& setting) {
  const int64_t steps = 1 + random.Below(4);
  const int equal = static_cast<int>(1 + random.Below(3));
  const bool varies = random.Chance(25), two_sessions = random.Chance(12);
  for (int64_t s = 0; s < steps; ++s) {
    NetStep step;
    step.values.learning_rate = OneOf(random, {0.0f, 0.001f, 0.1f, 0.5f});
    step.values.microbatches = varies ? static_cast<int>(1 + random.Below(3)) : equal;
    step.values.gradient_divisor = OneOf(random, {0.0, 0.0, 1.0, 3.0, 17.5});
    if (random.Chance(10)) step.discard_after = static_cast<int>(random.Below(step.values.microbatches + 1));
    step.reads_gradients = random.Chance(75);
    if (random.Chance(30)) step.evaluations = static_cast<int>(1 + random.Below(2));
    if (step.evaluations > 1 && random.Chance(60)) step.writes_between = DrawParameter(net, random);
    step.infinite = random.Chance(3);
    if (step.infinite) step.reads_gradients = true;
    // After a discarded step weights are still resident.
    const bool discarded = s > 0 && setting.steps.back().discard_after >= 0;
    if (s > 0 && random.Chance(discarded ? 50 : 10)) step.writes = DrawParameter(net, random);
    if (two_sessions) step.session = static_cast<int>(random.Below(2));
    setting.forward_session = setting.forward_session || step.evaluations > 0;
    setting.steps.push_back(step);
  }
}

void DrawTransports(Random& random, PlanOptions& plan) {
  const auto draw = [&] {
    UnitTransports transports(kTransports[random.Below(kTransports.size())].transport,
                              kTransports[random.Below(kTransports.size())].transport);
    if (plan.sum == Sum::kNccl) transports.exchange = Transport::kNccl;
    return transports;
  };
  plan.transports.clear();
  if (random.Chance(10)) return;
  if (random.Chance(70)) {
    plan.transports = EveryUnit(draw());
    return;
  }
  const int64_t bytes = random.Below(600);
  plan.transports = {{bytes, draw()}, {bytes + 600, draw()}};
}

std::string PlanToString(const PlanOptions& plan) {
  const auto number = [](std::optional<int> n) { return n.has_value() ? absl::StrCat(*n) : std::string("-"); };
  std::string text = absl::StrCat(
      "weight slots ", number(plan.weight_slots), ", gradient slots ", number(plan.gradient_slots), ", prefetch ",
      number(plan.prefetch_depth), ", per graph ", number(plan.microbatches_per_graph),
      plan.residency == Residency::kKeep ? ", residency" : "",
      plan.reduce == Reduce::kOncePerStep ? ", once per step" : "", plan.tail == Tail::kCarried ? ", carried" : "",
      ", ", ToText(plan.transports), ", sum ", std::string(reprise::Name(plan.sum.value_or(Sum::kRankOrder))));
  return absl::StrCat(text, ", reduce_dtype ", std::string(reprise::Name(plan.reduce_dtype)));
}

}  // namespace

NetSetting RandomNetSetting(const Net& net, Random& random) {
  NetSetting setting;
  setting.world.size = static_cast<int>(1 + random.Below(6));
  setting.master = random.Chance(75) ? DType::kFloat32 : DType::kBFloat16;
  TrainOptions& train = setting.train;
  PlanOptions& plan = train.run.plan;
  plan.reduce = random.Chance(30) ? Reduce::kOncePerStep : Reduce::kEveryMicrobatch;
  if (random.Chance(25)) plan.sum = Sum::kNccl;
  DrawTransports(random, plan);
  plan.reduce_dtype = OneOf(random, {DType::kFloat32, DType::kBFloat16});
  train.optimizer = DrawOptimizer(random);
  if (random.Chance(35)) train.clip_norm = OneOf(random, {0.01f, 0.5f, 4.0f});
  train.loss_scale = OneOf(random, {1.0f, 1.0f, 0x1p-5f, 0x1p10f});
  DrawSteps(net, random, setting);
  DrawMechanics(net, random, setting);
  return setting;
}

NetSetting WithTheSameBits(const Net& net, const NetSetting& setting, Random& random) {
  NetSetting other = setting;
  PlanOptions& plan = other.train.run.plan;
  DrawTransports(random, plan);
  DrawMechanics(net, random, other);
  return other;
}

std::string NetSetting::ToString() const {
  constexpr const char* kOrders[] = {"issue", "adversarial", "threads"};
  std::string text = absl::StrCat(
      "world size ", world.size, ", ", kOrders[static_cast<int>(world.order)], " ", world.seed, ", masters ",
      std::string(Name(master)), train.run.execution == Execution::kEager ? ", eager" : "",
      train.run.check_writes ? ", check_writes" : "", marks_changed ? ", marks changed" : "", asks ? ", asks" : "",
      ", clip ", train.clip_norm.value_or(0), ", loss scale ", train.loss_scale, "\n  ", PlanToString(train.run.plan));
  const auto other = [](const NetStep& step) { return step.session == 1; };
  if (std::any_of(steps.begin(), steps.end(), other)) {
    absl::StrAppend(&text, "\n  other session: ", PlanToString(other_plan));
  }
  text += "\n  ";
  if (const AdamW* adamw = std::get_if<AdamW>(&train.optimizer)) {
    absl::StrAppend(&text, "AdamW ", adamw->beta1, " ", adamw->beta2, " ", adamw->epsilon, " ", adamw->weight_decay);
  } else {
    const Sgd& sgd = std::get<Sgd>(train.optimizer);
    absl::StrAppend(&text, "SGD ", sgd.momentum, " ", sgd.weight_decay);
  }
  for (const NetStep& step : steps) {
    absl::StrAppend(&text, "; rate ", *step.values.learning_rate, " microbatches ", step.values.microbatches,
                    " divisor ", step.values.gradient_divisor,
                    step.discard_after >= 0 ? absl::StrCat(" discard after ", step.discard_after) : "",
                    step.evaluations > 0 ? absl::StrCat(" evaluations ", step.evaluations) : "",
                    step.writes_between >= 0 ? absl::StrCat(" p", step.writes_between, " written between") : "",
                    step.writes >= 0 ? absl::StrCat(" writes p", step.writes) : "", step.infinite ? " infinite" : "",
                    step.session == 1 ? " other session" : "");
  }
  return text;
}

}  // namespace reprise::testing
