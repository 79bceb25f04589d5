#include "examples/reprise_plan/options.h"

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "reprise/core/planner.h"

namespace reprise {
namespace {

// Planning takes a tenth of a second for so many, and is done up to a hundred times.
constexpr size_t kMaxCommands = 10'000;

// Would these options give the same plan, but for the options themselves?
bool GiveTheSame(const Plan& plan, const PlanOptions& options, bool training) {
  absl::StatusOr<Plan> other = (training ? PlanTraining : PlanForward)(plan.model, plan.world_size(), options);
  if (!other.ok()) return false;
  other->options = plan.options;
  other->fingerprint = plan.fingerprint;
  return *other == plan;
}

// Of options that limit something: the least value that gives the same plan as the one asked for.
int LeastOfTheSame(const Plan& plan, PlanOptions asked, std::optional<int> PlanOptions::*option, int least,
                   bool training) {
  int most = *(asked.*option);
  while (least < most) {
    const int middle = least + (most - least) / 2;
    asked.*option = middle;
    if (GiveTheSame(plan, asked, training)) {
      most = middle;
    } else {
      least = middle + 1;
    }
  }
  return most;
}

struct Limit {
  absl::string_view name;
  std::optional<int> PlanOptions::*option;
  int least;
  std::string reason;
};

}  // namespace

std::string OptionsTable(const Plan& plan, const PlanOptions& asked, const PlanOptions& usual, bool training,
                         std::string idle) {
  std::string out = "\noptions in force\n";
  for (const PlanOptionText& option : PlanOptionTexts()) {
    absl::StrAppend(&out, option.name, "=", option.get(plan.options), "\n");
  }
  const auto table = [&] { return idle.empty() ? out : absl::StrCat(out, "\noptions without effect\n", idle); };
  size_t commands = 0;
  for (const Schedule& schedule : plan.schedules) commands += schedule.commands.size();
  if (commands > kMaxCommands) {
    absl::StrAppend(&idle, "(others: not looked for in plans of more than ", kMaxCommands, " commands)\n");
    return table();
  }
  const auto add = [&](const std::string& option, const std::string& effect) {
    absl::StrAppend(&idle, option, ": ", effect, "\n");
  };
  const std::vector<Limit> limits = {
      {"prefetch_depth", &PlanOptions::prefetch_depth, 0,
       absl::StrCat(plan.weight_slots, " weight slots hold no more copies")},
      {"weight_slots", &PlanOptions::weight_slots, 1, "no more copies are gathered at a time"},
      {"gradient_slots", &PlanOptions::gradient_slots, 1,
       training ? "no more gradients travel at a time" : "a forward plan has no gradients"}};
  for (const Limit& limit : limits) {
    if (!(asked.*limit.option).has_value()) continue;
    const int value = *(asked.*limit.option);
    const int effective = LeastOfTheSame(plan, asked, limit.option, limit.least, training);
    if (effective < value) {
      add(absl::StrCat(limit.name, "=", value),
          absl::StrCat("no more effect than ", effective, ", because ", limit.reason));
    }
  }
  // The others, one by one, against what they would be.
  for (const PlanOptionText& option : PlanOptionTexts()) {
    const std::string value = option.get(asked), other = option.get(usual);
    const bool is_limit = absl::c_any_of(limits, [&](const Limit& limit) { return limit.name == option.name; });
    PlanOptions without = asked;
    if (is_limit || value == other || !option.set(without, other).ok() || !GiveTheSame(plan, without, training))
      continue;
    add(absl::StrCat(option.name, "=", value),
        absl::StrCat("no effect: ",
                     training ? "this model has the same plan without it" : "a forward plan is the same without it"));
  }
  return table();
}

}  // namespace reprise
