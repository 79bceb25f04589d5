// What planning refuses because of its size, before memory or arithmetic fail.
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "reprise/core/verifier.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using reprise::testing::IsOk;
using reprise::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kMaxInt = std::numeric_limits<int>::max();
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kExhausted = absl::StatusCode::kResourceExhausted;

Model Stack(int units) { return StackModel(units, {16, 16}, DType::kBFloat16, 4).value(); }

TEST(PlanLimitsTest, LargestSlotsAndDepthPlanLikeTheMostThatCanBeUsed) {
  for (const Tail tail : {Tail::kInGraph, Tail::kCarried}) {
    for (const Residency residency : {Residency::kKeep, Residency::kOff}) {
      PlanOptions options = {.prefetch_depth = kMaxInt,
                             .weight_slots = kMaxInt,
                             .gradient_slots = kMaxInt,
                             .microbatches_per_graph = 2,
                             .residency = residency,
                             .tail = tail};
      REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(Stack(3), 2, options));
      EXPECT_THAT(Verify(plan), IsOk());
      EXPECT_EQ(plan.options.gradient_slots, 6);
      EXPECT_EQ(plan.weight_slots, 3);
      options.gradient_slots = 6;
      EXPECT_EQ(PlanTraining(Stack(3), 2, options).value(), plan);
      EXPECT_THAT(PlanForward(Stack(3), 2, options), IsOk());
    }
  }
}

TEST(PlanLimitsTest, RefusesGraphsOfMoreThanAMillionCommands) {
  for (const int microbatches : {1 << 20, kMaxInt}) {
    const PlanOptions options = {.microbatches_per_graph = microbatches};
    const auto refused = StatusIs(kExhausted, AllOf(HasSubstr(absl::StrCat("a graph of ", microbatches, " microbatch")),
                                                    HasSubstr("but at most 1048576 with 16777216 are planned"),
                                                    HasSubstr("; lower microbatches_per_graph")));
    EXPECT_THAT(PlanTraining(Stack(2), 2, options), refused);
    EXPECT_THAT(PlanForward(Stack(2), 2, options), refused);
    EXPECT_THAT(PlanForward(Model(), 2, options), refused);
  }
  EXPECT_THAT(PlanForward(Stack(1 << 19), 2, {}), StatusIs(kExhausted, HasSubstr("; give the model fewer units")));
}

TEST(PlanLimitsTest, RefusesMoreOptimizerStatesThanOptimizersHave) {
  for (const int states : {-1, 17, kMaxInt}) {
    EXPECT_THAT(PlanTraining(Stack(1), 2, {.optimizer_states = states}),
                StatusIs(kInvalid, absl::StrCat("optimizer_states is ", states, "; give 0 to 16")));
  }
  EXPECT_THAT(PlanTraining(Stack(1), 2, {.optimizer_states = 16}), IsOk());
}

TEST(PlanLimitsTest, RefusesOptionsThatDoNotExist) {
  const auto refused = [](const char* message) { return StatusIs(kInvalid, HasSubstr(message)); };
  EXPECT_THAT(PlanTraining(Stack(1), 2, {.residency = Residency(9)}),
              refused("residency is 9, which does not exist; use one of keep, off"));
  EXPECT_THAT(PlanTraining(Stack(1), 2, {.reduce = Reduce(9)}),
              refused("reduce is 9, which does not exist; use one of every_microbatch, once_per_step"));
  EXPECT_THAT(PlanTraining(Stack(1), 2, {.tail = Tail(9)}),
              refused("tail is 9, which does not exist; use one of in_graph, carried"));
  const char* const no_sum = "sum is 9, which does not exist; use one of rank_order, nccl";
  EXPECT_THAT(PlanTraining(Stack(1), 2, {.sum = Sum(9)}), refused(no_sum));
  EXPECT_THAT(PlanForward(Stack(1), 2, {.sum = Sum(9)}), refused(no_sum));
  EXPECT_THAT(
      PlanTraining(Stack(1), 2, {.reduce = Reduce::kOncePerStep, .tail = Tail::kCarried}),
      refused("tail carried needs a reduction in every graph, and reduce once_per_step has none; choose one of them"));
  EXPECT_THAT(PlanTraining(Stack(1), 2, {.reduce_dtype = DType(44)}), refused("reduce_dtype is unknown"));
}

TEST(PlanLimitsTest, RefusesTransportChoicesThatAreNone) {
  const auto refused = [](std::vector<TransportChoice> choices, const std::string& message) {
    EXPECT_THAT(PlanTraining(Stack(1), 2, {.transports = choices}), StatusIs(kInvalid, HasSubstr(message)));
    EXPECT_THAT(PlanForward(Stack(1), 2, {.transports = choices}), StatusIs(kInvalid, HasSubstr(message)));
  };
  refused({{0, Transport(9)}}, "transports has transport 9, which does not exist, from 0 bytes on; give nccl,");
  refused({{7, {Transport::kNccl, Transport(3)}}}, "transport 3, which does not exist, from 7 bytes on; give nccl,");
  refused({{-1, Transport::kNccl}}, "transports has -1 bytes; give 0 or more, ascending");
  refused({{0, Transport::kNccl}, {5, Transport::kSymmetric}, {5, Transport::kNccl}},
          "transports has 5 bytes after 5; give 0 or more, ascending");
  EXPECT_THAT(PlanTraining(Stack(1), 2, {.transports = EveryUnit(Transport::kCopyEngine), .sum = Sum::kNccl}),
              StatusIs(kInvalid, HasSubstr("are exchanged by copy_engine, which cannot add as sum = nccl; exchange by "
                                           "nccl, or leave sum at rank_order")));
  EXPECT_THAT(PlanTraining(Stack(1), 2,
                           {.transports = EveryUnit({Transport::kCopyEngine, Transport::kNccl}), .sum = Sum::kNccl}),
              IsOk());
  EXPECT_THAT(PlanTraining(Stack(1), 2, {.transports = {{std::numeric_limits<int64_t>::max(), Transport::kSymmetric}}}),
              IsOk());
}

// A forward model with one input of `input_bytes`, and a parameter.
Model InputModel(int64_t input_bytes, int64_t elements) {
  ModelBuilder builder;
  const UnitId unit = builder.AddUnit("u");
  builder.AddParameter(unit, {.name = "p", .shape = {elements}, .dtype = DType::kFloat32});
  const TensorId x = builder.AddInput({.name = "x", .shape = {input_bytes}, .dtype = DType::kUInt8});
  builder.AddCall({.name = "c", .units = {unit}, .inputs = {x}});
  return builder.Build().value();
}

TEST(PlanLimitsTest, RefusesStagingThatOverflows) {
  constexpr int64_t kLarge = (int64_t{1} << 62) - 1;
  for (const int microbatches : {1, 2, 100000}) {
    EXPECT_THAT(PlanForward(InputModel(kLarge, 1), 1, {.microbatches_per_graph = microbatches}),
                StatusIs(kExhausted, AllOf(HasSubstr("staging of input \"x\" takes "),
                                           HasSubstr("slots of 4611686018427387904 bytes"),
                                           HasSubstr("lower microbatches_per_graph"))));
  }
}

TEST(PlanLimitsTest, RefusesStoragesWhoseSumOverflows) {
  const Model model = InputModel(kMaxInt64 / 6 - 4096, int64_t{1} << 52);
  EXPECT_THAT(PlanForward(model, 1, {.microbatches_per_graph = 3}),
              StatusIs(kExhausted, AllOf(HasSubstr("together they exceed"), HasSubstr("make the tensors smaller"))));
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanForward(model, 1, {.microbatches_per_graph = 1}));
  EXPECT_THAT(Verify(plan), IsOk());
  EXPECT_GT(plan.memory.persistent_bytes(), kMaxInt64 / 3);
}

}  // namespace
}  // namespace reprise
