// Check::kMeaning: plans of the planner, and one mistake at a time. Waits and memory are derived again after each, so
// that nothing but what the plan means is wrong.
#include <algorithm>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "tests/testing/rearranged_schedule.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/violations.h"

namespace reprise {
namespace {

using reprise::testing::DeriveWaits;
using reprise::testing::IsOk;
using reprise::testing::Rearranged;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;

// ---- plans ----

Plan Stack(const PlanOptions& options) {
  return PlanTraining(StackModel(3, {8, 8}, DType::kBFloat16, 4).value(), 2, options).value();
}
Plan Basic() { return Stack({.residency = Residency::kOff}); }
Plan Resident() { return Stack({}); }
Plan TwoMicrobatches() { return Stack({.microbatches_per_graph = 2}); }
Plan Carried() { return Stack({.tail = Tail::kCarried}); }
Plan Once() { return Stack({.reduce = Reduce::kOncePerStep}); }
Plan InPlace() { return Stack({.reduce = Reduce::kOncePerStep, .reduce_dtype = DType::kFloat32}); }
Plan CopyEngine() { return Stack({.transports = EveryUnit(Transport::kCopyEngine)}); }
Plan Packed() { return Stack({.reduce_dtype = DType::kFloat32}); }

// Units of different sizes, a tied one among them that is packed, and a state.
Plan Tied(bool trains) {
  ModelBuilder builder;
  const UnitId tied = builder.AddUnit("tied"), other = builder.AddUnit("other");
  builder.AddParameter(tied, {"tied.w", {64}});
  builder.AddParameter(other, {"other.w", {512}});
  const TensorId x = builder.AddInput({"x", {4}, DType::kFloat32});
  const TensorId cache = builder.AddState({"cache", {4}, DType::kFloat32});
  const TensorId a = builder.AddActivation({"a", {4}, DType::kFloat32});
  const TensorId b = builder.AddActivation({"b", {4}, DType::kFloat32});
  const TensorId loss = builder.AddOutput({"loss", {}, DType::kFloat32});
  builder.AddCall({.name = "c0", .units = {tied}, .inputs = {x}, .outputs = {a}, .saved = {x}, .state = {cache}});
  builder.AddCall({.name = "c1", .units = {other}, .inputs = {a}, .outputs = {b}, .saved = {a}});
  builder.AddCall({.name = "c2", .units = {tied}, .inputs = {b}, .outputs = {loss}, .saved = {b}});
  builder.SetLoss(loss);
  const Model model = builder.Build().value();
  const PlanOptions options = {.residency = Residency::kOff, .reduce_dtype = DType::kFloat32};
  return trains ? PlanTraining(model, 2, options).value() : PlanForward(model, 2, options).value();
}
Plan TiedTraining() { return Tied(true); }
Plan TiedForward() { return Tied(false); }

// ---- changes ----

// Where the n-th command of a kind is.
template <class T>
size_t Nth(const Schedule& schedule, int n = 0) {
  for (size_t c = 0; c < schedule.commands.size(); ++c) {
    if (std::holds_alternative<T>(schedule.commands[c].command) && n-- == 0) return c;
  }
  ADD_FAILURE() << schedule.name << " has too few such commands";
  return 1;
}
template <class T>
T& FieldsOf(Schedule& schedule, int n = 0) {
  return std::get<T>(schedule.commands[Nth<T>(schedule, n)].command);
}
template <class T>
std::vector<BufferUse>& UsesOf(Schedule& schedule, int n = 0) {
  return schedule.commands[Nth<T>(schedule, n)].uses;
}
BufferUse& UseAs(std::vector<BufferUse>& uses, Role role) {
  return *std::find_if(uses.begin(), uses.end(), [&](const BufferUse& use) { return use.role == role; });
}
void Drop(Schedule& schedule, size_t at) {
  Rearranged commands(schedule);
  commands.Drop(at);
  commands.Finish();
}
template <class T>
void Drop(Schedule& schedule, int n = 0) {
  Drop(schedule, Nth<T>(schedule, n));
}
template <class T>
void Double(Schedule& schedule, int n = 0) {
  const size_t at = Nth<T>(schedule, n);
  Rearranged commands(schedule);
  commands.Double(at, at + 1);
  commands.Finish();
}
// Before the place of another command.
void Move(Schedule& schedule, size_t from, size_t to) {
  Rearranged commands(schedule);
  for (size_t i = from; i < to; ++i) commands.Swap(i, i + 1);
  for (size_t i = from; i > to; --i) commands.Swap(i, i - 1);
  commands.Finish();
}
void DropReductions(Schedule& schedule) {
  for (size_t c = schedule.commands.size(); c-- > 0;) {
    if (schedule.commands[c].lane == Lane::kReduceScatter) Drop(schedule, c);
  }
}

struct Mistake {
  std::string name;
  Plan (*plan)();
  int Plan::*schedule;
  std::function<void(Schedule&)> change;
  std::vector<std::string> words;
};
void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }

std::vector<Mistake> StepMistakes() {
  return {
      {"RefreshMissing",
       Basic,
       &Plan::step,
       [](Schedule& s) { Drop<RefreshShards>(s, 1); },
       {"the schedule must leave bytes [0, 128) of weights.u1 with the shard of group 0 of u1 after the update, but "
        "they hold the shard of group 0 of u1 before the update"}},
      {"RefreshBeforeUpdate",
       Basic,
       &Plan::step,
       [](Schedule& s) { Move(s, Nth<RefreshShards>(s, 1), Nth<UpdateParameters>(s, 1)); },
       {"refresh_shards u1", "must find master 0", "after the update, but they hold", "before the update"}},
      {"RefreshOfAnotherUnit",
       Basic,
       &Plan::step,
       [](Schedule& s) { FieldsOf<RefreshShards>(s).unit = UnitId(1); },
       {"#3 refresh_shards u1", "of weights.u0 as shard 0, whose place is weights.u1"}},
      {"UpdateTwice",
       Basic,
       &Plan::step,
       [](Schedule& s) { Double<UpdateParameters>(s); },
       {"#3 update_parameters u0", "before the update, but they hold",
        "after the update, as #2 update_parameters u0 (compute) left them"}},
      {"UpdateMissing",
       Basic,
       &Plan::step,
       [](Schedule& s) { Drop<UpdateParameters>(s); },
       {"refresh_shards u0", "after the update, but they hold"}},
      {"NormMissing",
       Basic,
       &Plan::step,
       [](Schedule& s) { Drop<SumNorm>(s); },
       {"update_parameters u0", "and the norm, but they hold the step state with the losses up to microbatch 0"}},
      {"NormTwice",
       Basic,
       &Plan::step,
       [](Schedule& s) { Double<SumNorm>(s); },
       {"#2 sum_norm", "and the norm, as #1 sum_norm (reduce_scatter) left them"}},
      {"NormInPart",
       Basic,
       &Plan::step,
       [](Schedule& s) { UseAs(UsesOf<SumNorm>(s), Role::kNormPartials).num_bytes -= 8; },
       {"sum_norm", "as norm_partials, but must read 24 bytes"}},
      {"OptimizerStatesSwapped",
       Basic,
       &Plan::step,
       [](Schedule& s) {
         std::vector<BufferUse>& uses = UsesOf<UpdateParameters>(s);
         std::swap(uses[2].buffer, uses[3].buffer);
       },
       {"of optimizer1.u0 as optimizer_state 0, whose place is optimizer0.u0"}},
      {"MetricsMissing",
       Basic,
       &Plan::step,
       [](Schedule& s) { Drop<PublishMetrics>(s); },
       {"the schedule must leave bytes [0, 40) of step_state"}},
      {"MetricsBeforeUpdate",
       Basic,
       &Plan::step,
       [](Schedule& s) { Move(s, Nth<PublishMetrics>(s), Nth<UpdateParameters>(s)); },
       {"#3 update_parameters u0", "must find step_state", "as #2 publish_metrics (compute) left them"}},
  };
}

std::vector<Mistake> GraphMistakes() {
  return {
      {"LossTwice",
       Basic,
       &Plan::first,
       [](Schedule& s) { Double<RecordLoss>(s); },
       {"#13 record_loss", "up to microbatch -1, but they hold", "up to microbatch 0, as #12 record_loss"}},
      {"LossMissing",
       TwoMicrobatches,
       &Plan::body,
       [](Schedule& s) { Drop<RecordLoss>(s, 1); },
       {"must leave", "losses up to microbatch 1, but they hold the step state with the losses up to microbatch 0"}},
      {"LossOfAnotherMicrobatch",
       TwoMicrobatches,
       &Plan::body,
       [](Schedule& s) { ++FieldsOf<RecordLoss>(s).position; },
       {"record_loss microbatch 1", "tensor loss of microbatch 1, but they hold tensor loss of microbatch 0"}},
      {"CountMissing",
       Basic,
       &Plan::first,
       [](Schedule& s) { Drop<NextMicrobatch>(s); },
       {"stage_inputs", "the control block of this replay, but they hold the control block of the replay before"}},
      {"CountOfTwo",
       Basic,
       &Plan::first,
       [](Schedule& s) { FieldsOf<NextMicrobatch>(s).count = 2; },
       {"counts 2 microbatches, but its schedule has 1"}},
      {"CountTooLate",
       Basic,
       &Plan::first,
       [](Schedule& s) { Move(s, Nth<NextMicrobatch>(s), Nth<Forward>(s)); },
       {"stage_inputs", "the control block of this replay, but they hold the control block of the replay before"}},
      {"InputsOfAnotherMicrobatch",
       TwoMicrobatches,
       &Plan::body,
       [](Schedule& s) { FieldsOf<StageInputs>(s, 1).position = 2; },
       {"is at position 2, but its schedule has 2 microbatches"}},
      {"InputSlots",
       Basic,
       &Plan::first,
       [](Schedule& s) { FieldsOf<StageInputs>(s).slots = 3; },
       {"takes turns in 3 slots, but there are 2"}},
      {"ForwardOfAnotherMicrobatch",
       TwoMicrobatches,
       &Plan::body,
       [](Schedule& s) { FieldsOf<Forward>(s).position = 1; },
       {"forward c0 microbatch 1", "tensor x of microbatch 1, but they hold tensor x of microbatch 0"}},
      {"ForwardOfAnotherCall",
       Basic,
       &Plan::first,
       [](Schedule& s) { FieldsOf<Forward>(s).call = CallId(1); },
       {"forward c1", "of gathered.u0.0 as parameter 0, which it does not need"}},
      {"ForwardTwiceWithState",
       TiedForward,
       &Plan::first,
       [](Schedule& s) { Double<Forward>(s); },
       {"#6 forward c0", "cache after 0 updates, but they hold state tensor cache after 1 updates, as #5 forward c0"}},
      {"ForwardMissing",
       TiedForward,
       &Plan::first,
       [](Schedule& s) { Drop<Forward>(s, 2); },
       {"must leave bytes [0, 4) of loss with tensor loss of microbatch 0"}},
      {"BackwardInAForwardPlan",
       TiedForward,
       &Plan::first,
       [](Schedule& s) { s.commands[Nth<Forward>(s)].command = Backward{CallId(0)}; },
       {"backward c0", "the loss needs no gradient of its outputs"}},
      {"StepStateOfTheControlBlock",
       Basic,
       &Plan::first,
       [](Schedule& s) { UseAs(UsesOf<RecordLoss>(s), Role::kStepState).buffer = BufferId(6); },
       {"updates bytes [0, 40) of control as step_state, whose place is step_state"}},
      {"ShardOfAnotherUnit",
       Basic,
       &Plan::first,
       [](Schedule& s) {
         UseAs(UsesOf<AllGather>(s), Role::kShard).buffer = UseAs(UsesOf<AllGather>(s, 1), Role::kShard).buffer;
       },
       {"all_gather u0", "the shard of group 0 of u0 before the update, but they hold the shard of group 0 of u1"}},
      {"UnitsOfTwoGathersSwapped",
       TiedTraining,
       &Plan::first,
       [](Schedule& s) { std::swap(FieldsOf<AllGather>(s).unit, FieldsOf<AllGather>(s, 1).unit); },
       {"all_gather other", "of weights.tied as shard 0, but must read 512 bytes"}},
      {"ParameterAtAnotherPlace",
       TiedTraining,
       &Plan::first,
       [](Schedule& s) {
         BufferUse& use = UseAs(UsesOf<Forward>(s, 1), Role::kParameter);
         use.buffer = UseAs(UsesOf<Forward>(s), Role::kParameter).buffer;
         use.num_bytes = 128;
       },
       {"forward c1", "of gathered.tied.0 as parameter 1, but must read 1024 bytes"}},
      {"ParameterUnaligned",
       TiedTraining,
       &Plan::first,
       [](Schedule& s) { UseAs(UsesOf<Forward>(s), Role::kParameter).offset = 2; },
       {"forward c0", "as parameter 0, which does not start at a multiple of 128 bytes"}},
      {"NothingWrittenForPeers",
       CopyEngine,
       &Plan::first,
       [](Schedule& s) { std::erase_if(UsesOf<AllGather>(s), [](const BufferUse& use) { return !use.is_own(); }); },
       {"all_gather u0", "has no use as gathered 0 of peers, which it needs"}},
      {"WrittenElsewhereForPeers",
       CopyEngine,
       &Plan::first,
       [](Schedule& s) {
         UsesOf<ReduceScatter>(s).back().buffer = UseAs(UsesOf<ReduceScatter>(s, 1), Role::kReceived).buffer;
       },
       {"reduce_scatter u2", "of received.u1.m0", "as received 0 of peers, but has", "of received.u2.m0"}},
      {"TiedUnitPackedTooEarly",
       TiedTraining,
       &Plan::first,
       [](Schedule& s) { Move(s, Nth<PackGradients>(s, 1), Nth<Backward>(s, 2)); },
       {"pack_gradients tied", "with 2 of its terms, but they hold", "with 1 of its terms, as #"}},
      {"PackOfAnotherUnit",
       Packed,
       &Plan::first,
       [](Schedule& s) { FieldsOf<PackGradients>(s).unit = UnitId(0); },
       {"pack_gradients u0", "has no use as parameter_gradient 0, which it needs"}},
      {"PackMissing",
       Packed,
       &Plan::first,
       [](Schedule& s) { Drop<PackGradients>(s); },
       {"reduce_scatter u2", "the gradient of u2.weight of microbatch 0 in the reduce dtype, but they hold nothing"}},
      {"ReductionMissing",
       Basic,
       &Plan::first,
       [](Schedule& s) { DropReductions(s); },
       {"must leave",
        "the sum of group 0 of u0 up to microbatch 0, but they hold the sum of group 0 of u0 up to microbatch -1"}},
      {"AccumulatedTwice",
       Basic,
       &Plan::first,
       [](Schedule& s) { Double<Accumulate>(s); },
       {"accumulate u2", "up to microbatch -1, but they hold the sum of group 0 of u2 up to microbatch 0, as #"}},
      {"GradientAddedTwice",
       TiedTraining,
       &Plan::first,
       [](Schedule& s) { Double<Backward>(s, 2); },
       {"backward c0", "with 1 of its terms, but they hold", "with 2 of its terms, as #18 backward c0"}},
  };
}

std::vector<Mistake> StateMistakes() {
  return {
      {"ResidentNotGathered",
       Resident,
       &Plan::first,
       [](Schedule& s) { std::swap(s.end.residents[0].buffer, s.end.residents[1].buffer); },
       {"must leave", "the gathered weights of group 0 of u", "but they hold the gathered weights of group 0 of u"}},
      {"ResidentGatheredInPart",
       Resident,
       &Plan::body,
       [](Schedule& s) { UseAs(UsesOf<AllGather>(s), Role::kGathered).num_bytes /= 2; },
       {"all_gather u2", "as gathered 0, but must assign 256 bytes"}},
      {"CarriedReductionNotWritten",
       Carried,
       &Plan::first,
       [](Schedule& s) {
         BufferUse& use = UseAs(UsesOf<Backward>(s, 3), Role::kParameterGradient);
         use.buffer = UseAs(UsesOf<Backward>(s, 2), Role::kParameterGradient).buffer;
       },
       {"must leave", "reduce.u0.carried with the gradient of u0.weight of microbatch 0", "but they hold nothing"}},
      {"CarriedReductionNotDone",
       Carried,
       &Plan::finish,
       [](Schedule& s) { DropReductions(s); },
       {"must leave", "of accumulator.u0",
        "up to microbatch 0, but they hold the sum of group 0 of u0 up to microbatch -1"}},
      {"CarriedReductionAtAnotherPosition",
       Carried,
       &Plan::body,
       [](Schedule& s) { FieldsOf<ReduceScatter>(s).position = 0; },
       {"reduce_scatter u0 microbatch 0", "must find reduce_buffer 0",
        "but they hold the gradient of u0.weight of microbatch -1"}},
      {"PackedGradientLost",
       Once,
       &Plan::finish,
       [](Schedule& s) { DropReductions(s); },
       {"must leave", "the sum of group 0 of u0 up to microbatch 0, but they hold nothing"}},
      {"UnshardedGradientLost",
       InPlace,
       &Plan::finish,
       [](Schedule& s) { DropReductions(s); },
       {"must leave", "the sum of group 0 of u0 up to microbatch 0, but they hold nothing"}},
      {"UnshardedGradientPackedInPart",
       Once,
       &Plan::finish,
       [](Schedule& s) { UseAs(UsesOf<PackGradients>(s), Role::kParameterGradient).num_bytes /= 2; },
       {"pack_gradients u2", "as parameter_gradient 2, but must read 256 bytes"}},
      {"UnshardedGradientLostByTheBody",
       Once,
       &Plan::body,
       [](Schedule& s) { UseAs(UsesOf<Backward>(s, 1), Role::kParameterGradient).access = Access::kAssign; },
       {"backward c2", "assigns", "as parameter_gradient 2, but must update 256 bytes"}},
      {"UnshardedGradientOfAnotherParameter",
       InPlace,
       &Plan::body,
       [](Schedule& s) {
         std::swap(UseAs(UsesOf<Backward>(s, 1), Role::kParameterGradient).buffer,
                   UseAs(UsesOf<Backward>(s, 2), Role::kParameterGradient).buffer);
       },
       {"backward c2", "as parameter_gradient 2, whose place is unsharded_gradient.u2"}},
  };
}

class VerifierMeaningMistakeTest : public ::testing::TestWithParam<Mistake> {};

TEST_P(VerifierMeaningMistakeTest, IsFound) {
  const Mistake& mistake = GetParam();
  Plan plan = mistake.plan();
  ASSERT_THAT(Verify(plan), IsOk());
  Schedule& schedule = plan.schedules[plan.*mistake.schedule];
  mistake.change(schedule);
  DeriveWaits(plan, schedule);
  const std::vector<Violation> found = FindViolations(plan);
  ASSERT_THAT(found,
              Contains(AllOf(Field(&Violation::check, Check::kMeaning), Field(&Violation::schedule, schedule.name))));
  for (const std::string& word : mistake.words) EXPECT_THAT(found.back().message, HasSubstr(word));
}

std::string NameOf(const ::testing::TestParamInfo<Mistake>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Step, VerifierMeaningMistakeTest, ::testing::ValuesIn(StepMistakes()), NameOf);
INSTANTIATE_TEST_SUITE_P(Graph, VerifierMeaningMistakeTest, ::testing::ValuesIn(GraphMistakes()), NameOf);
INSTANTIATE_TEST_SUITE_P(State, VerifierMeaningMistakeTest, ::testing::ValuesIn(StateMistakes()), NameOf);

// ---- what is where ----

TEST(VerifierMeaningTest, NamesWhatIsNotInItsPlace) {
  struct PlanMistake {
    std::function<void(Plan&)> change;
    const char* words;
  };
  const auto weights = [](Plan& plan) -> Buffer& { return plan.buffers[plan.unit_buffers[1].weights[0].value()]; };
  for (const PlanMistake& mistake : std::vector<PlanMistake>{
           {[&](Plan& p) { std::swap(weights(p).offset, p.buffers[p.unit_buffers[0].weights[0].value()].offset); },
            "the shard of group 0 of u0 is at byte 256 of its storage, not 0"},
           {[](Plan& p) { std::swap(p.unit_buffers[0].accumulators, p.unit_buffers[1].weights); },
            "accumulator.u0 is to hold the shard of group 0 of u1 of 128 bytes in storage weights, but has 256 in "
            "storage session"},
           {[](Plan& p) { p.unit_buffers[0].accumulators = p.unit_buffers[1].accumulators; },
            "accumulator.u1 is to hold the accumulator of group 0 of u1, and something else too"},
           {[](Plan& p) { p.unit_buffers[0].optimizer_states[0].pop_back(); },
            "the plan has 1 optimizer states of a group, but its model has 2"},
           {[](Plan& p) { p.tensor_buffers[0].value = p.control; }, "is to hold tensor x, but outlives no graph"},
           {[](Plan& p) { p.metrics = BufferId(); }, "buffer -1, which is to hold the metrics, does not exist"},
           {[](Plan& p) { p.axes[0].size = 3; }, "axes are not one of 2 ranks"},
           {[](Plan& p) { p.memory.num_bytes[static_cast<int>(Storage::kLocal)] += 512; }, "storage local has "},
           {[](Plan& p) {
              p.buffers.push_back({"idle", Storage::kExternal, 8, 0});
            },
            "idle is in storage external, but holds nothing that outlives a graph"},
           {[](Plan& p) { p.schedules.push_back(p.schedules[0]); }, "is none of first, body, finish and step"}}) {
    Plan plan = Basic();
    mistake.change(plan);
    EXPECT_THAT(FindViolations(plan), Contains(AllOf(Field(&Violation::check, Check::kMeaning),
                                                     Field(&Violation::message, HasSubstr(mistake.words)))));
  }
}

}  // namespace
}  // namespace reprise
