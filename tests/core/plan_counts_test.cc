// How many collectives a step of equal units takes: the figures that the schedule promises; and its parts of the norm.
#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/planner/residency.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"

namespace reprise {
namespace {

PlanSummary Step(int units, int microbatches, const PlanOptions& options) {
  const absl::StatusOr<Model> model = StackModel(units, {16, 16}, DType::kBFloat16, 4);
  EXPECT_TRUE(model.ok()) << model.status();
  const absl::StatusOr<Plan> plan = PlanTraining(*model, 2, options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return {};
  const absl::StatusOr<PlanSummary> summary = Summarize(*plan, microbatches);
  EXPECT_TRUE(summary.ok()) << summary.status();
  return summary.value_or(PlanSummary{});
}

TEST(PlanCountsTest, FoundingFigures) {
  const PlanOptions off{.residency = Residency::kOff};
  EXPECT_EQ(Step(4, 1, off).all_gathers, 8);
  EXPECT_EQ(Step(4, 1, off).reduce_scatters, 4);
  EXPECT_EQ(Step(4, 2, off).all_gathers, 16);
  EXPECT_EQ(Step(4, 2, off).reduce_scatters, 8);
  for (int per_graph : {1, 2}) {
    const PlanSummary on = Step(4, 2, {.weight_slots = 2, .microbatches_per_graph = per_graph});
    EXPECT_EQ(on.all_gathers, 10) << per_graph;
    EXPECT_EQ(on.reduce_scatters, 8) << per_graph;
  }
}

// Eight units of 4096 x 4096 in bfloat16 on two ranks, without optimizer state. Per element a rank keeps its part of
// the weights, of the accumulators in float32 and of the masters where they differ; less than 1 MiB comes beside. Two
// slots of either kind and less than one copy more, of what is received and of activations, are transient.
TEST(PlanCountsTest, FoundingMemory) {
  constexpr int64_t kMiB = 1 << 20, kElements = int64_t{8} * 4096 * 4096, kUnitBytes = int64_t{2} * 4096 * 4096;
  const absl::StatusOr<Model> model = StackModel(8, {4096, 4096}, DType::kBFloat16, 2);
  ASSERT_TRUE(model.ok()) << model.status();
  for (const auto& [master, per_element] : {std::pair(DType::kBFloat16, 6), std::pair(DType::kFloat32, 10)}) {
    const absl::StatusOr<Plan> plan = PlanTraining(*model, 2, {.master_dtype = master, .optimizer_states = 0});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_GE(plan->memory.persistent_bytes(), kElements * per_element / 2);
    EXPECT_LT(plan->memory.persistent_bytes(), kElements * per_element / 2 + kMiB);
    EXPECT_GE(plan->memory.transient_bytes(), 4 * kUnitBytes);
    EXPECT_LT(plan->memory.transient_bytes(), 5 * kUnitBytes);
  }
}

// The frozen first unit is gathered for forward alone: nothing asks its backward for a gradient. The other is gathered
// twice and reduced.
TEST(PlanCountsTest, AFrozenUnitWhoseInputNeedsNoGradientHasNoBackward) {
  ModelBuilder builder;
  TensorId x = builder.AddInput({.name = "x", .shape = {2, 4}});
  for (const bool trainable : {false, true}) {
    const std::string name = trainable ? "trainable" : "frozen";
    const UnitId unit = builder.AddUnit(name);
    builder.AddParameter(unit, {.name = name + ".weight", .shape = {4, 4}, .trainable = trainable});
    const TensorId y = builder.AddActivation({.name = name + ".y", .shape = {2, 4}});
    builder.AddCall({.name = name, .units = {unit}, .inputs = {x}, .outputs = {y}, .saved = {x}});
    x = y;
  }
  const TensorId loss = builder.AddOutput({.name = "loss", .dtype = DType::kFloat32});
  builder.AddCall({.name = "loss", .inputs = {x}, .outputs = {loss}, .saved = {x}});
  builder.SetLoss(loss);
  const absl::StatusOr<Plan> plan = PlanTraining(*builder.Build(), 2, {.residency = Residency::kOff});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const absl::StatusOr<PlanSummary> step = Summarize(*plan, 1);
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->all_gathers, 3);
  EXPECT_EQ(step->reduce_scatters, 1);
  const auto& commands = plan->schedules[plan->first].commands;
  EXPECT_EQ(std::count_if(commands.begin(), commands.end(),
                          [](const ScheduledCommand& c) { return std::holds_alternative<Backward>(c.command); }),
            2)
      << "of the loss and of the trainable unit";
}

// Where a re-gather avoids its unit's old copy, that copy stays in its slot until something else goes there, and the
// new one is still the unit's.
TEST(PlanCountsTest, WhatTakesTheSlotOfAnOldCopyLeavesTheNewOne) {
  const UnitId u(0), v(1);
  std::vector<internal::WeightAccess> accesses;
  for (int phase = 0; phase < 2; ++phase) {
    accesses.push_back({{u}, false});
    accesses.push_back({{u, v}, true});
    accesses.push_back({{u}, true});
  }
  const internal::GatherPlan plan = internal::PlanGathers(
      accesses, /*start=*/{}, {.num_units = 2, .slots = 2, .prefetch_depth = 1, .residency = Residency::kOff});
  ASSERT_EQ(plan.copies.size(), 4u) << "each unit once a phase";
  EXPECT_NE(plan.copies[2].slot, plan.copies[0].slot) << "or the test shows nothing";
  EXPECT_EQ(plan.access_copies[5], plan.access_copies[3]);
}

class StepOfEqualUnits : public ::testing::TestWithParam<std::tuple<int, int, int>> {};

INSTANTIATE_TEST_SUITE_P(All, StepOfEqualUnits,
                         ::testing::Combine(::testing::Range(1, 9), ::testing::Range(1, 9), ::testing::Range(1, 9)),
                         [](const auto& info) {
                           return absl::StrCat("units", std::get<0>(info.param), "microbatches",
                                               std::get<1>(info.param), "slots", std::get<2>(info.param));
                         });

TEST_P(StepOfEqualUnits, ResidencyGathersTwicePerUseLessWhatStays) {
  const auto [units, microbatches, slots] = GetParam();
  const int expected = 2 * units * microbatches - std::min(slots, units) * (2 * microbatches - 1);
  for (int per_graph = 1; per_graph <= microbatches; ++per_graph) {
    if (microbatches % per_graph != 0) continue;
    const PlanSummary step = Step(units, microbatches, {.weight_slots = slots, .microbatches_per_graph = per_graph});
    EXPECT_EQ(step.all_gathers, expected) << "graphs of " << per_graph;
    EXPECT_EQ(step.reduce_scatters, units * microbatches) << "graphs of " << per_graph;
  }
}

TEST_P(StepOfEqualUnits, WithoutResidencyEveryUseGathers) {
  const auto [units, microbatches, slots] = GetParam();
  for (int per_graph : {1, microbatches}) {
    const PlanSummary step =
        Step(units, microbatches,
             {.weight_slots = slots, .microbatches_per_graph = per_graph, .residency = Residency::kOff});
    EXPECT_EQ(step.all_gathers, 2 * units * microbatches) << "graphs of " << per_graph;
    EXPECT_EQ(step.reduce_scatters, units * microbatches) << "graphs of " << per_graph;
  }
}

TEST_P(StepOfEqualUnits, OnePerStepReducesEachUnitOnce) {
  const auto [units, microbatches, slots] = GetParam();
  const PlanSummary step = Step(units, microbatches, {.weight_slots = slots, .reduce = Reduce::kOncePerStep});
  EXPECT_EQ(step.reduce_scatters, units);
  EXPECT_EQ(step.all_gathers, 2 * units * microbatches - std::min(slots, units) * (2 * microbatches - 1));
}

TEST_P(StepOfEqualUnits, ACarriedTailLosesNoReduction) {
  const auto [units, microbatches, slots] = GetParam();
  const PlanSummary step = Step(units, microbatches, {.weight_slots = slots, .tail = Tail::kCarried});
  EXPECT_EQ(step.reduce_scatters, units * microbatches);
}

// Each buffer of a plan is named once, so that its text and its errors say which one they mean.
TEST(PlanNamesTest, NoTwoBuffersHaveOneName) {
  ModelBuilder builder;
  const UnitId unit = builder.AddUnit("u");
  builder.AddParameter(unit, {.name = "w", .shape = {40}, .dtype = DType::kFloat32});
  const TensorId x = builder.AddInput({.name = "x", .shape = {4}});
  const TensorId mask = builder.AddActivation({.name = "mask", .shape = {4}});
  const TensorId loss = builder.AddOutput({.name = "loss", .dtype = DType::kFloat32});
  builder.AddCall({.name = "c",
                   .units = {unit},
                   .inputs = {x},
                   .outputs = {loss},
                   .saved = {x, mask},
                   .scratch_bytes = 8,
                   .recompute = true});
  builder.SetLoss(loss);
  const absl::StatusOr<Model> scratch = builder.Build();
  ASSERT_TRUE(scratch.ok()) << scratch.status();
  for (const Model& model : {*scratch, *StackModel(3, {16, 16}, DType::kBFloat16, 4)}) {
    for (int per_graph : {1, 2}) {
      for (Reduce reduce : {Reduce::kEveryMicrobatch, Reduce::kOncePerStep}) {
        for (Tail tail : {Tail::kInGraph, Tail::kCarried}) {
          if (reduce == Reduce::kOncePerStep && tail == Tail::kCarried) continue;
          const absl::StatusOr<Plan> plan =
              PlanTraining(model, 2, {.microbatches_per_graph = per_graph, .reduce = reduce, .tail = tail});
          ASSERT_TRUE(plan.ok()) << plan.status();
          std::set<std::string> names;
          for (const Buffer& buffer : plan->buffers) EXPECT_TRUE(names.insert(buffer.name).second) << buffer.name;
        }
      }
    }
  }
}

// ---- the norm ----

// 131072 elements of each unit on a rank: 8 ranges.
TEST(PlanNormTest, EachAccumulateUpdatesThePartialNormsOfItsUnit) {
  const Model model = *StackModel(3, {512, 512}, DType::kBFloat16, 4);
  constexpr int64_t kBytes = 8 * sizeof(double);
  for (const PlanOptions& options :
       {PlanOptions{}, PlanOptions{.tail = Tail::kCarried}, PlanOptions{.reduce = Reduce::kOncePerStep},
        PlanOptions{.microbatches_per_graph = 2, .tail = Tail::kCarried}}) {
    const absl::StatusOr<Plan> plan = PlanTraining(model, 2, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->buffer(plan->norm_partials).num_bytes, 3 * kBytes);
    for (const Schedule& schedule : plan->schedules) {
      for (const ScheduledCommand& command : schedule.commands) {
        const auto* accumulate = std::get_if<Accumulate>(&command.command);
        std::vector<BufferUse> uses = command.uses;
        std::erase_if(uses, [](const BufferUse& use) { return use.role != Role::kNormPartials; });
        if (accumulate != nullptr) {
          EXPECT_THAT(uses, ::testing::ElementsAre(BufferUse{plan->norm_partials, accumulate->unit.value() * kBytes,
                                                             kBytes, Access::kUpdate, Role::kNormPartials, 0}));
        } else if (std::holds_alternative<SumNorm>(command.command)) {
          EXPECT_THAT(uses, ::testing::ElementsAre(
                                BufferUse{plan->norm_partials, 0, 3 * kBytes, Access::kRead, Role::kNormPartials, -1}));
        } else {
          EXPECT_TRUE(uses.empty()) << Describe(*plan, command.command);
        }
      }
    }
  }
}

}  // namespace
}  // namespace reprise
