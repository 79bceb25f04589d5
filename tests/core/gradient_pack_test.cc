// Which gradients backward writes where the reduce-scatter reads them, and which are packed first.
#include <algorithm>
#include <ostream>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/planner.h"
#include "reprise/core/verifier.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using reprise::testing::IsOk;

constexpr DType kF32 = DType::kFloat32, kBF16 = DType::kBFloat16;

struct TestUnit {
  std::vector<ParameterSpec> parameters;
  int calls = 1;  // one after the other: with two, the parameters are tied
};

// The calls of all units in a chain, and a loss.
absl::StatusOr<Model> Chain(const std::vector<TestUnit>& units) {
  ModelBuilder builder;
  TensorId x = builder.AddInput({.name = "x", .shape = {2, 4}});
  for (size_t u = 0; u < units.size(); ++u) {
    const std::string name = absl::StrCat("u", u);
    const UnitId unit = builder.AddUnit(name);
    for (const ParameterSpec& parameter : units[u].parameters) builder.AddParameter(unit, parameter);
    for (int c = 0; c < units[u].calls; ++c) {
      const std::string call = absl::StrCat(name, ".", c);
      const TensorId y = builder.AddActivation({.name = call + ".y", .shape = {2, 4}});
      builder.AddCall({.name = call, .units = {unit}, .inputs = {x}, .outputs = {y}, .saved = {x}});
      x = y;
    }
  }
  const TensorId loss = builder.AddOutput({.name = "loss", .dtype = kF32});
  builder.AddCall({.name = "loss", .inputs = {x}, .outputs = {loss}, .saved = {x}});
  builder.SetLoss(loss);
  return builder.Build();
}

// Parameters of the uses with the role, in the order of the uses.
std::vector<std::string> ParametersOf(const Plan& plan, const ScheduledCommand& command, Role role) {
  std::vector<std::string> names;
  for (const BufferUse& use : command.uses) {
    if (use.role == role) names.push_back(plan.model.parameter(ParameterId(use.id)).spec.name);
  }
  return names;
}

// Does a reduce-scatter read the very bytes that backward writes?
bool IsReduced(const Plan& plan, const BufferUse& written) {
  const auto reads = [&](const BufferUse& use) {
    return use.role == Role::kWire && use.id == written.id && use.buffer == written.buffer &&
           use.offset == written.offset && use.num_bytes == written.num_bytes;
  };
  const auto reduces = [&](const ScheduledCommand& command) {
    return std::holds_alternative<ReduceScatter>(command.command) &&
           std::any_of(command.uses.begin(), command.uses.end(), reads);
  };
  return std::any_of(plan.schedules.begin(), plan.schedules.end(), [&](const Schedule& schedule) {
    return std::any_of(schedule.commands.begin(), schedule.commands.end(), reduces);
  });
}

struct PackCase {
  std::string name;
  std::vector<TestUnit> units;
  PlanOptions options = {};
  // Of each microbatch, or of a step that reduces once.
  std::vector<std::string> direct = {};               // written where they are reduced, in the order of backward
  std::vector<std::vector<std::string>> packed = {};  // by command
};
void PrintTo(const PackCase& c, std::ostream* out) { *out << c.name; }

std::vector<PackCase> PackCases() {
  const std::vector<TestUnit> bf16 = {{{{"a", {4, 4}, kBF16}}}, {{{"b", {4, 4}, kBF16}}}};
  const std::vector<TestUnit> f32 = {{{{"a", {4, 4}, kF32}}}, {{{"b", {4, 4}, kF32}}}};
  const std::vector<TestUnit> mixed = {
      {{{"w", {4, 4}, kBF16}, {"scale", {4}, kF32}, {"v", {4, 4}, kBF16}, {"shift", {4}, kF32}}}};
  const std::vector<TestUnit> tied = {{{{"a", {4, 4}, kBF16}}, 2}};
  const std::vector<TestUnit> tied_mixed = {{{{"w", {4, 4}, kBF16}, {"scale", {4}, kF32}}, 2}};
  return {
      {"GradientsInWireDtype", bf16, {}, {"b", "a"}},
      {"FloatsInAFloatWire", f32, {.wire = kF32}, {"b", "a"}},
      {"FloatsInABFloat16Wire", f32, {}, {}, {{"b"}, {"a"}}},
      {"BFloat16InAFloatWire", bf16, {.wire = kF32}, {}, {{"b"}, {"a"}}},
      {"SeveralMicrobatches", bf16, {.microbatches_per_graph = 2}, {"b", "a"}},
      {"SeveralMicrobatchesPacked", f32, {.microbatches_per_graph = 2}, {}, {{"b"}, {"a"}}},
      {"Exchange", bf16, {.transport = Transport::kCopyEngine}, {"b", "a"}},
      {"CarriedTail", bf16, {.tail = Tail::kCarried}, {"b", "a"}},
      {"CarriedTailPacked", f32, {.tail = Tail::kCarried}, {}, {{"b"}, {"a"}}},
      {"AWireOfTheParametersOwn", {{{{"a", {4}, kF32, true, kF32}, {"b", {4}, kF32}}}}, {}, {"a"}, {{"b"}}},
      {"MixedGroups", mixed, {}, {"w", "v"}, {{"scale", "shift"}}},
      {"FrozenAndEmptyParameters",
       {{{{"frozen", {4}, kF32, false}, {"a", {4}, kBF16}, {"empty", {0}, kF32}}}},
       {},
       {"a"}},
      {"Tied", tied, {}, {"a", "a"}},
      {"TiedMixedGroups", tied_mixed, {}, {"w", "w"}, {{"scale"}}},
      {"OncePerStep", bf16, {.reduce = Reduce::kOncePerStep}, {}, {{"b"}, {"a"}}},
      {"OncePerStepTied", tied, {.reduce = Reduce::kOncePerStep}, {}, {{"a"}}},
      {"OncePerStepInAFloatWire", f32, {.reduce = Reduce::kOncePerStep, .wire = kF32}, {}, {{"b"}, {"a"}}},
  };
}

class GradientPackTest : public ::testing::TestWithParam<PackCase> {};
INSTANTIATE_TEST_SUITE_P(All, GradientPackTest, ::testing::ValuesIn(PackCases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(GradientPackTest, OnlyGradientsInAnotherDtypeOrKeptOverMicrobatchesArePacked) {
  const PackCase& c = GetParam();
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, Chain(c.units));
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(model, 2, c.options));
  ASSERT_THAT(Verify(plan), IsOk());
  const bool once = c.options.reduce == Reduce::kOncePerStep;
  for (int s = 0; s < static_cast<int>(plan.schedules.size()); ++s) {
    const Schedule& schedule = plan.schedules[s];
    SCOPED_TRACE(schedule.name);
    std::vector<std::string> direct, want_direct;
    std::vector<std::vector<std::string>> packed, want_packed;
    for (const ScheduledCommand& command : schedule.commands) {
      if (std::holds_alternative<PackGradients>(command.command)) {
        packed.push_back(ParametersOf(plan, command, Role::kParameterGradient));
        EXPECT_EQ(ParametersOf(plan, command, Role::kWire), packed.back());
      }
      if (!std::holds_alternative<Backward>(command.command)) continue;
      for (const BufferUse& use : command.uses) {
        if (use.role != Role::kParameterGradient || use.num_bytes == 0 || !IsReduced(plan, use)) continue;
        direct.push_back(plan.model.parameter(ParameterId(use.id)).spec.name);
      }
    }
    const int gradients = once ? (s == plan.finish ? 1 : 0) : schedule.microbatches;
    for (int g = 0; g < gradients; ++g) {
      want_direct.insert(want_direct.end(), c.direct.begin(), c.direct.end());
      want_packed.insert(want_packed.end(), c.packed.begin(), c.packed.end());
    }
    EXPECT_EQ(direct, want_direct);
    EXPECT_EQ(packed, want_packed);
  }
}

}  // namespace
}  // namespace reprise
