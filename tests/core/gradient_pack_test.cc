// Which gradients backward writes where the reduce-scatter reads them, and which are packed first.
#include <algorithm>
#include <ostream>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "reprise/core/verifier.h"
#include "tests/testing/random_model.h"
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
    return use.role == Role::kReduceBuffer && use.id == plan.layout.parameters[written.id].group &&
           use.buffer == written.buffer && use.offset <= written.offset &&
           written.offset + written.num_bytes <= use.offset + use.num_bytes;
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
  std::vector<std::string> direct = {};  // of each microbatch: written where they are reduced, in the order of backward
  std::vector<std::vector<std::string>> packed = {};  // of each microbatch, or of a step that reduces once; by command
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
      {"GradientsInReduceDtype", bf16, {}, {"b", "a"}},
      {"FloatsReducedInFloats", f32, {.reduce_dtype = kF32}, {"b", "a"}},
      {"FloatsReducedInBFloat16", f32, {}, {}, {{"b"}, {"a"}}},
      {"BFloat16ReducedInFloats", bf16, {.reduce_dtype = kF32}, {}, {{"b"}, {"a"}}},
      {"SeveralMicrobatches", bf16, {.microbatches_per_graph = 2}, {"b", "a"}},
      {"SeveralMicrobatchesPacked", f32, {.microbatches_per_graph = 2}, {}, {{"b"}, {"a"}}},
      {"Exchange", bf16, {.transports = EveryUnit(Transport::kCopyEngine)}, {"b", "a"}},
      {"CarriedTail", bf16, {.tail = Tail::kCarried}, {"b", "a"}},
      {"CarriedTailPacked", f32, {.tail = Tail::kCarried}, {}, {{"b"}, {"a"}}},
      {"AReduceDTypeOfTheParametersOwn", {{{{"a", {4}, kF32, true, kF32}, {"b", {4}, kF32}}}}, {}, {"a"}, {{"b"}}},
      {"MixedGroups", mixed, {}, {"w", "v"}, {{"scale", "shift"}}},
      {"FrozenAndEmptyParameters",
       {{{{"frozen", {4}, kF32, false}, {"a", {4}, kBF16}, {"empty", {0}, kF32}}}},
       {},
       {"a"}},
      {"Tied", tied, {}, {"a", "a"}},
      {"TiedMixedGroups", tied_mixed, {}, {"w", "w"}, {{"scale"}}},
      {"OncePerStep", bf16, {.reduce = Reduce::kOncePerStep}, {}, {{"b"}, {"a"}}},
      {"OncePerStepTied", tied, {.reduce = Reduce::kOncePerStep}, {}, {{"a"}}},
      {"OncePerStepReducedInFloats", f32, {.reduce = Reduce::kOncePerStep, .reduce_dtype = kF32}, {"b", "a"}},
      {"OncePerStepOfBFloat16ReducedInFloats",
       bf16,
       {.reduce = Reduce::kOncePerStep, .reduce_dtype = kF32},
       {"b", "a"}},
      {"OncePerStepOfSeveralMicrobatchesReducedInFloats",
       bf16,
       {.microbatches_per_graph = 3, .reduce = Reduce::kOncePerStep, .reduce_dtype = kF32},
       {"b", "a"}},
      {"OncePerStepInAnExchange",
       f32,
       {.reduce = Reduce::kOncePerStep, .transports = EveryUnit(Transport::kSymmetric), .reduce_dtype = kF32},
       {"b", "a"}},
      {"OncePerStepTiedReducedInFloats", tied, {.reduce = Reduce::kOncePerStep, .reduce_dtype = kF32}, {"a", "a"}},
      {"OncePerStepOfMixedGroupsReducedInFloats",
       mixed,
       {.reduce = Reduce::kOncePerStep, .reduce_dtype = kF32},
       {"w", "scale", "v", "shift"}},
      {"OncePerStepInAReduceDTypeOfTheParametersOwn",
       {{{{"a", {4}, kF32, true, kF32}, {"b", {4}, kF32, true, kF32}}}, {{{"c", {4}, kF32}}}},
       {.reduce = Reduce::kOncePerStep},
       {"a", "b"},
       {{"c"}}},
      {"OncePerStepInTwoReduceDTypes",
       {{{{"a", {4}, kF32, true, kF32}, {"b", {4}, kF32}}}},
       {.reduce = Reduce::kOncePerStep},
       {},
       {{"a", "b"}}},
      {"OncePerStepBesideFrozenAndEmptyParameters",
       {{{{"frozen", {4}, kF32, false, kBF16}, {"a", {4}, kBF16}, {"empty", {0}, kF32}}}},
       {.reduce = Reduce::kOncePerStep, .reduce_dtype = kF32},
       {"a"}},
  };
}

class GradientPackTest : public ::testing::TestWithParam<PackCase> {};
INSTANTIATE_TEST_SUITE_P(All, GradientPackTest, ::testing::ValuesIn(PackCases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(GradientPackTest, OnlyGradientsInAnotherDtypeArePacked) {
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
        std::set<int32_t> groups, written;
        for (const BufferUse& use : command.uses) {
          if (use.role == Role::kReduceBuffer) written.insert(use.id);
          if (use.role == Role::kParameterGradient) groups.insert(plan.layout.parameters[use.id].group);
        }
        EXPECT_EQ(written, groups);
      }
      if (!std::holds_alternative<Backward>(command.command)) continue;
      for (const BufferUse& use : command.uses) {
        if (use.role != Role::kParameterGradient || use.num_bytes == 0 || !IsReduced(plan, use)) continue;
        direct.push_back(plan.model.parameter(ParameterId(use.id)).spec.name);
      }
    }
    for (int m = 0; m < schedule.microbatches; ++m) {
      want_direct.insert(want_direct.end(), c.direct.begin(), c.direct.end());
    }
    for (int g = once ? (s == plan.finish ? 1 : 0) : schedule.microbatches; g > 0; --g) {
      want_packed.insert(want_packed.end(), c.packed.begin(), c.packed.end());
    }
    EXPECT_EQ(direct, want_direct);
    EXPECT_EQ(packed, want_packed);
  }
}

// ---- once per step, where the unsharded gradient is ready to be reduced ----

// Commands of the schedule that are of the unit, and of type T.
template <class T>
std::vector<ScheduledCommand> Of(UnitId unit, const Schedule& schedule) {
  std::vector<ScheduledCommand> found;
  for (const ScheduledCommand& command : schedule.commands) {
    const T* const typed = std::get_if<T>(&command.command);
    if (typed != nullptr && typed->unit == unit) found.push_back(command);
  }
  return found;
}

std::vector<BufferUse> UsesAs(const ScheduledCommand& command, Role role) {
  std::vector<BufferUse> uses = command.uses;
  std::erase_if(uses, [&](const BufferUse& use) { return use.role != role; });
  return uses;
}

// A unit is reduced in place if its trainable groups all are reduced in float32, and packed as a whole otherwise.
TEST(GradientInPlaceTest, UnitsOfRandomModelsAreReducedInPlaceIfAllAreReducedInFloats) {
  constexpr int kSeeds = 200;
  int in_place = 0, packed = 0;
  for (int seed = 0; seed < kSeeds && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    testing::Random random(seed);
    const Model model = testing::RandomModel(seed, {.max_units = 5});
    PlanOptions options = testing::RandomPlanOptions(random);
    options.reduce = Reduce::kOncePerStep;
    options.tail = Tail::kInGraph;
    if (random.Chance(30)) options.reduce_dtype = kF32;
    REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(model, static_cast<int>(1 + random.Below(4)), options));
    ASSERT_THAT(Verify(plan), IsOk());
    const Schedule& finish = plan.schedules[plan.finish];
    for (size_t u = 0; u < model.units().size(); ++u) {
      const UnitId unit(static_cast<int64_t>(u));
      const std::vector<ScheduledCommand> reductions = Of<ReduceScatter>(unit, finish);
      if (reductions.empty()) continue;  // nothing to train
      ASSERT_EQ(reductions.size(), 1u);
      const bool floats = std::all_of(plan.layout.units[u].groups.begin(), plan.layout.units[u].groups.end(),
                                      [&](const FlatGroup& g) { return !g.trainable || plan.reduce_dtype(g) == kF32; });
      ++(floats ? in_place : packed);
      EXPECT_EQ(Of<PackGradients>(unit, finish).size(), floats ? 0u : 1u);
      const BufferId full = plan.unit_buffers[u].unsharded_gradient;
      EXPECT_EQ(plan.buffer(full).storage, floats ? Storage::kGradients : Storage::kSession);
      const std::vector<BufferUse> reduced = UsesAs(reductions[0], Role::kReduceBuffer);
      for (const BufferUse& use : reduced) EXPECT_EQ(use.buffer == full, floats);
      EXPECT_EQ(std::get<ReduceScatter>(reductions[0].command).slot == -1, floats);
      // An exchange leaves a rank's own part where the reduction read it.
      const std::vector<BufferUse> own = UsesAs(Of<Accumulate>(unit, finish)[0], Role::kReduceBuffer);
      EXPECT_EQ(own, plan.unit_policies[u].sum == Sum::kRankOrder ? reduced : std::vector<BufferUse>());
    }
  }
  EXPECT_GT(in_place, kSeeds / 2);
  EXPECT_GT(packed, kSeeds / 2);
}

// Of three units of 4096 elements on two ranks, nothing stays gathered. A packed unit has a reduce buffer in bfloat16.
TEST(GradientInPlaceTest, NoReduceBufferIsPlanned) {
  constexpr int64_t kUnits = 3, kElements = 4096;
  const Model model = StackModel(kUnits, {64, 64}, kBF16, 8).value();
  for (const Transport transport : {Transport::kNccl, Transport::kSymmetric, Transport::kCopyEngine}) {
    for (const DType reduce_dtype : {kF32, kBF16}) {
      SCOPED_TRACE(absl::StrCat(Name(transport), ", reduce_dtype ", Name(reduce_dtype)));
      REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(model, 2,
                                                                 {.weight_slots = 1,
                                                                  .residency = Residency::kOff,
                                                                  .reduce = Reduce::kOncePerStep,
                                                                  .transports = EveryUnit(transport),
                                                                  .reduce_dtype = reduce_dtype}));
      const auto bytes = [&](Storage storage) { return plan.memory.num_bytes[static_cast<int>(storage)]; };
      const bool in_place = reduce_dtype == kF32;
      EXPECT_EQ(bytes(Storage::kGradients), in_place ? kUnits * kElements * 4 : 0);
      // One gathered copy; one received part of half a gradient; two reduce buffers beside one.
      const int64_t gathered = kElements * 2, received = kElements / 2 * SizeOf(reduce_dtype);
      EXPECT_EQ(bytes(Storage::kCommunicating),
                std::max(gathered, in_place ? received : 2 * kElements * SizeOf(reduce_dtype) + received));
      const int64_t reduce_buffers = std::count_if(plan.buffers.begin(), plan.buffers.end(), [](const Buffer& buffer) {
        return buffer.name.rfind("reduce.", 0) == 0;
      });
      EXPECT_EQ(reduce_buffers, in_place ? 0 : kUnits);
      // In place `finish` is Begin, End and, for each unit, a reduction and its accumulate.
      EXPECT_EQ(plan.schedules[plan.finish].commands.size(), static_cast<size_t>(2 + kUnits * (in_place ? 2 : 3)));
    }
  }
}

}  // namespace
}  // namespace reprise
