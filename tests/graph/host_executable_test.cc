// Host replays: every order gives the same bytes, and what is wrong with a schedule or a compute function is found.
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/machine.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "reprise/graph/host_world.h"
#include "tests/conformance/hash_compute.h"
#include "tests/conformance/plan_runner.h"
#include "tests/testing/plan_builder.h"
#include "tests/testing/random_model.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using ::reprise::testing::HashCompute;
using ::reprise::testing::HashInput;
using ::reprise::testing::HashParameter;
using ::reprise::testing::IsOk;
using ::reprise::testing::PlanBuilder;
using ::reprise::testing::PlanRunner;
using ::reprise::testing::Random;
using ::reprise::testing::RandomModel;
using ::reprise::testing::RandomPlanOptions;
using ::reprise::testing::RunnerOptions;
using ::reprise::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr ReplayOrder kOrders[] = {ReplayOrder::kIssue, ReplayOrder::kAdversarial, ReplayOrder::kThreads};
constexpr Execution kExecutions[] = {Execution::kGraph, Execution::kEager};

struct Conditions {
  ReplayOrder order = ReplayOrder::kIssue;
  uint64_t seed = 0;
  RunnerOptions runner = {.execution = Execution::kEager};
  int threads = 0;
};

absl::StatusOr<std::unique_ptr<PlanRunner>> NewRunner(const Plan& plan, ComputeTable compute,
                                                      const Conditions& conditions) {
  REPRISE_ASSIGN_OR_RETURN(std::shared_ptr<World> world, CreateHostWorld({.size = plan.world_size(),
                                                                          .order = conditions.order,
                                                                          .seed = conditions.seed,
                                                                          .threads = conditions.threads}));
  return PlanRunner::Create(std::move(world), plan, std::move(compute), HashParameter, conditions.runner);
}

// What two steps leave behind.
absl::StatusOr<std::string> TwoSteps(const Plan& plan, const Conditions& conditions, int microbatches) {
  REPRISE_ASSIGN_OR_RETURN(ComputeTable compute, HashCompute(plan.model));
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<PlanRunner> runner, NewRunner(plan, std::move(compute), conditions));
  for (int step = 0; step < 2; ++step) REPRISE_RETURN_IF_ERROR(runner->RunStep(microbatches, HashInput));
  return runner->ReadAll();
}

absl::StatusOr<Plan> SmallPlan() {
  REPRISE_ASSIGN_OR_RETURN(const Model model, StackModel(3, {6, 6}, DType::kBFloat16, 3));
  return PlanTraining(model, 2, {});
}

class RandomPlanTest : public ::testing::TestWithParam<int> {};

TEST_P(RandomPlanTest, EveryOrderAndExecutionLeavesTheSameBytes) {
  Random random(static_cast<uint64_t>(GetParam()));
  const Model model = RandomModel(random.Next(), {.max_units = 4, .max_bytes = 512});
  const PlanOptions options = RandomPlanOptions(random);
  const int ranks = 1 + GetParam() % 4;
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(model, ranks, options));
  const int microbatches = 2 * *options.microbatches_per_graph;
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::string expected, TwoSteps(plan, {}, microbatches));
  for (const ReplayOrder order : kOrders) {
    for (const Execution execution : kExecutions) {
      const Conditions conditions = {order, random.Next(), {.execution = execution}};
      REPRISE_ASSERT_OK_AND_ASSIGN(const std::string bytes, TwoSteps(plan, conditions, microbatches));
      EXPECT_TRUE(bytes == expected) << "order " << static_cast<int>(order) << ", execution "
                                     << static_cast<int>(execution) << ", seed " << conditions.seed << "\n"
                                     << ToText(plan);
    }
  }
}

TEST_P(RandomPlanTest, TheNormIsOfAllAccumulatorsOfAllRanks) {
  Random random(static_cast<uint64_t>(GetParam()));
  const Model model = RandomModel(random.Next(), {.max_units = 4, .max_bytes = 512});
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(model, 2, {.gradient_slots = 4}));
  REPRISE_ASSERT_OK_AND_ASSIGN(ComputeTable compute, HashCompute(model));
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PlanRunner> runner, NewRunner(plan, std::move(compute), {}));
  ASSERT_THAT(runner->RunStep(1, HashInput), IsOk());
  double expected = 0;
  int64_t count = 0;
  for (const UnitBuffers& unit : plan.unit_buffers) {
    for (const BufferId accumulator : unit.accumulators) {
      for (int local = 0; local < 2 && accumulator.valid(); ++local) {
        REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> values, runner->ReadAs<float>(local, accumulator));
        for (const float value : values) expected += static_cast<double>(value) * value;
        count += static_cast<int64_t>(values.size());
      }
    }
  }
  for (const int local : {0, 1}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<StepState> state, runner->ReadAs<StepState>(local, plan.step_state));
    EXPECT_NEAR(state[0].norm_squared, expected, static_cast<double>(count) * 0x1p-52 * expected);
    EXPECT_GT(expected, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomPlanTest, ::testing::Range(0, 16));

// ---- the adversarial order ----

// The order in which forward calls of two ranks ran, over several replays of one executable.
std::vector<std::string> ForwardOrders(uint64_t seed) {
  std::vector<std::string> orders;
  const absl::StatusOr<Plan> plan = SmallPlan();
  std::string order;
  ComputeTable compute = HashCompute(plan->model).value();
  for (auto& [call, functions] : compute) {
    functions.forward = [&order, forward = functions.forward](ComputeContext& context) {
      absl::StrAppend(&order, context.rank());
      return forward(context);
    };
  }
  const auto runner = NewRunner(*plan, compute, {ReplayOrder::kAdversarial, seed});
  for (int replay = 0; replay < 8; ++replay) {
    order.clear();
    if (!(*runner)->BeginStep(1).ok() || !(*runner)->ReplayGraph(plan->first, HashInput).ok()) return {};
    orders.push_back(order);
  }
  return orders;
}

TEST(AdversarialReplayTest, DrawsAnotherOrderForEachReplayAndTheSameForEachSeed) {
  const std::vector<std::string> orders = ForwardOrders(1);
  ASSERT_EQ(orders.size(), 8u);
  EXPECT_NE(std::vector<std::string>(8, orders[0]), orders);
  EXPECT_EQ(ForwardOrders(1), orders);
  EXPECT_NE(ForwardOrders(2), orders);
}

TEST(HostReplayTest, SaysWhatIsBlockedInsteadOfHanging) {
  PlanBuilder b;
  const UnitId unit = b.Unit("u0", 128);
  b.Call("c0");
  const BufferId weights = b.Buffer("w0", Storage::kWeights, 128, 0);
  const BufferId gathered = b.Buffer("g0", Storage::kCommunicating, 256, 0);
  b.Start("body", 1);
  b.Command(Begin{}, Lane::kCompute);
  b.Command(AllGather{unit, 0, Transport::kNccl, AxisId(0)}, Lane::kAllGather,
            {b.Use(weights, Access::kRead, Role::kShard), b.Use(gathered, Access::kAssign, Role::kGathered)},
            {reprise::testing::Data(2)});
  b.Command(End{}, Lane::kCompute, {}, {reprise::testing::Join(1)});
  const Plan plan = b.Build();
  std::vector<std::byte> memory(512);
  const auto bindings = std::make_shared<internal::Bindings>();
  bindings->plan = std::make_shared<const Plan>(plan);
  bindings->ranks = {0, 1};
  bindings->addresses = {{memory.data(), memory.data() + 256}, {memory.data(), memory.data() + 256}};
  for (const ReplayOrder order : kOrders) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, CreateHostWorld({.size = 2, .order = order}));
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<internal::Executable> executable,
                                 internal::MachineOf(*world).Record(Execution::kGraph, bindings, 0));
    EXPECT_THAT(
        executable->Replay(),
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 AllOf(HasSubstr("lane compute stands at #2 end, which waits for #1 all_gather u0 slot 0 nccl"),
                       HasSubstr("lane all_gather stands at #1 all_gather u0 slot 0 nccl, which waits for #2 end"))));
  }
}

// ---- compute functions ----

class ComputeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    REPRISE_ASSERT_OK_AND_ASSIGN(plan_, SmallPlan());
    REPRISE_ASSERT_OK_AND_ASSIGN(compute_, HashCompute(plan_.model));
  }
  // Records, and replays `first` twice; the first error.
  absl::Status Replay(Execution execution, bool check_writes = false, ReplayOrder order = ReplayOrder::kIssue) {
    const Conditions conditions = {order, 0, {.execution = execution, .check_writes = check_writes}};
    REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<PlanRunner> runner, NewRunner(plan_, compute_, conditions));
    for (int replay = 0; replay < 2; ++replay) {
      REPRISE_RETURN_IF_ERROR(runner->BeginStep(1));
      REPRISE_RETURN_IF_ERROR(runner->ReplayGraph(plan_.first, HashInput));
    }
    return absl::OkStatus();
  }

  Plan plan_;
  ComputeTable compute_;
  const CallId c1_{1};
};

TEST_F(ComputeTest, RunsOnAsManyThreadsAsTheWorldAllows) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  const ComputeFunction forward = compute_.at(c1_).forward;
  compute_.at(c1_).forward = [&](ComputeContext& context) {
    context.stream().host_queue().Enqueue([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // time for another thread to take the next rank's
      const std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
    });
    return forward(context);
  };
  for (const int allowed : {1, 2}) {
    const Conditions conditions = {.runner = {.execution = Execution::kGraph}, .threads = allowed};
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PlanRunner> runner, NewRunner(plan_, compute_, conditions));
    threads.clear();
    for (int replay = 0; replay < 5; ++replay) {
      ASSERT_THAT(runner->BeginStep(1), IsOk());
      ASSERT_THAT(runner->ReplayGraph(plan_.first, HashInput), IsOk());
    }
    EXPECT_LE(threads.size(), static_cast<size_t>(allowed));
    if (allowed == 1) {
      EXPECT_EQ(*threads.begin(), std::this_thread::get_id());
    } else if (std::thread::hardware_concurrency() > 1) {
      EXPECT_EQ(threads.size(), 2u);
    }
  }
}

TEST_F(ComputeTest, RunsOnceForAGraphAndAtEveryEagerReplay) {
  int runs = 0;
  compute_[c1_].forward = [&runs, forward = compute_[c1_].forward](ComputeContext& context) {
    runs += context.rank() == 0 ? 1 : 0;
    return forward(context);
  };
  int schedules = 0;  // that run the call once each
  for (const Schedule& schedule : plan_.schedules) schedules += schedule.microbatches;
  ASSERT_THAT(Replay(Execution::kGraph), IsOk());
  EXPECT_EQ(runs, schedules);
  runs = 0;
  ASSERT_THAT(Replay(Execution::kEager), IsOk());
  EXPECT_EQ(runs, 2);
}

TEST_F(ComputeTest, AnErrorIsReturnedWithCommandPhaseCallAndRank) {
  compute_[c1_].backward = [](ComputeContext& context) {
    return context.rank() == 1 ? absl::ResourceExhaustedError("no workspace") : absl::OkStatus();
  };
  for (const ReplayOrder order : kOrders) {
    for (const Execution execution : kExecutions) {
      EXPECT_THAT(Replay(execution, /*check_writes=*/false, order),
                  StatusIs(absl::StatusCode::kResourceExhausted,
                           AllOf(HasSubstr("(backward c1 microbatch 0): backward of call \"c1\" on rank 1 failed: "
                                           "no workspace"),
                                 ::testing::StartsWith("command #"))));
    }
  }
}

TEST_F(ComputeTest, EagerReplaysInIssueOrderRunItForOneRankAfterAnotherOnTheCallingThread) {
  std::vector<int> ranks;
  compute_[c1_].backward = [&ranks, caller = std::this_thread::get_id(),
                            backward = compute_[c1_].backward](ComputeContext& context) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    ranks.push_back(context.rank());
    return backward(context);
  };
  ASSERT_THAT(Replay(Execution::kEager), IsOk());
  EXPECT_EQ(ranks, (std::vector<int>{0, 1, 0, 1}));
}

TEST_F(ComputeTest, AFailedExecutableStaysFailedAndTheWorldDoesNotRepeatIt) {
  bool fail = true;
  compute_[c1_].forward = [&fail, forward = compute_[c1_].forward](ComputeContext& context) {
    return fail ? absl::AbortedError("once") : forward(context);
  };
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PlanRunner> runner, NewRunner(plan_, compute_, {}));
  ASSERT_THAT(runner->BeginStep(1), IsOk());
  const absl::Status error = runner->ReplayGraph(plan_.first, HashInput);
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kAborted, HasSubstr("once")));
  EXPECT_THAT(runner->world().Synchronize(), IsOk());
  fail = false;
  EXPECT_EQ(runner->ReplayGraph(plan_.first, HashInput), error);
}

TEST_F(ComputeTest, AnExceptionBecomesInternal) {
  compute_[c1_].forward = [](ComputeContext&) -> absl::Status { throw std::runtime_error("bad day"); };
  for (const Execution execution : kExecutions) {
    EXPECT_THAT(Replay(execution), StatusIs(absl::StatusCode::kInternal,
                                            HasSubstr("forward of call \"c1\" on rank 0 threw an exception: bad day")));
  }
  compute_[c1_].forward = [](ComputeContext&) -> absl::Status { throw 7; };
  EXPECT_THAT(Replay(Execution::kEager),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("threw something that is not a std::exception")));
}

TEST_F(ComputeTest, AnExceptionOfEnqueuedWorkBecomesInternal) {
  compute_[c1_].forward = [](ComputeContext& context) {
    context.stream().host_queue().Enqueue([] { throw std::runtime_error("late"); });
    return absl::OkStatus();
  };
  for (const ReplayOrder order : kOrders) {
    EXPECT_THAT(Replay(Execution::kGraph, /*check_writes=*/false, order),
                StatusIs(absl::StatusCode::kInternal,
                         AllOf(HasSubstr("(forward c1 microbatch 0)"), HasSubstr("threw an exception: late"))));
  }
}

TEST_F(ComputeTest, AMissingFunctionIsNamed) {
  compute_[c1_].backward = nullptr;
  EXPECT_THAT(Replay(Execution::kGraph),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the compute table has no function for backward of call \"c1\"")));
  compute_.erase(c1_);
  EXPECT_THAT(Replay(Execution::kEager),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the compute table has no function for forward of call \"c1\"")));
}

TEST_F(ComputeTest, ARefusedRequestIsReturnedRatherThanWhatFollowsFromIt) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const TensorId x, plan_.model.FindTensor("x"));
  compute_[c1_].forward = [x](ComputeContext& context) {
    return context.input<BFloat16>(x).data == nullptr ? absl::InternalError("null view") : absl::OkStatus();
  };
  EXPECT_THAT(Replay(Execution::kGraph),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("forward of call \"c1\" asked for what it may not touch"), HasSubstr("\"x\""))));
}

// ---- check_writes ----

TEST_F(ComputeTest, CheckWritesAcceptsCompleteFunctions) {
  EXPECT_THAT(Replay(Execution::kEager, /*check_writes=*/true), IsOk());
}

// Runs `function`, and lets what it enqueues leave the last elements of a view as they were before.
template <class View>
absl::Status LeaveUnwritten(ComputeContext& context, View view, int64_t elements, const ComputeFunction& function) {
  const auto last = view.data + view.num_elements() - elements;
  const auto before = std::make_shared<std::vector<std::remove_reference_t<decltype(*last)>>>(elements);
  HostQueue& queue = context.stream().host_queue();
  queue.Enqueue([=] { std::copy_n(last, elements, before->begin()); });
  REPRISE_RETURN_IF_ERROR(function(context));
  queue.Enqueue([=] { std::copy(before->begin(), before->end(), last); });
  return absl::OkStatus();
}

TEST_F(ComputeTest, CheckWritesFindsAnUnwrittenOutput) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const TensorId y1, plan_.model.FindTensor("y1"));
  compute_[c1_].forward = [y1, forward = compute_[c1_].forward](ComputeContext& context) {
    return LeaveUnwritten(context, context.output<BFloat16>(y1), 2, forward);
  };
  EXPECT_THAT(Replay(Execution::kEager, /*check_writes=*/true),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("forward of call \"c1\" on rank 0 left 2 of 18 elements of output of tensor \"y1\" "
                                 "unwritten")));
  EXPECT_THAT(Replay(Execution::kEager, /*check_writes=*/false), IsOk());
}

TEST_F(ComputeTest, CheckWritesFindsAnUnwrittenGradient) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const ParameterId weight, plan_.model.FindParameter("u1.weight"));
  compute_[c1_].backward = [weight, backward = compute_[c1_].backward](ComputeContext& context) {
    return LeaveUnwritten(context, context.parameter_gradient<BFloat16>(weight), 1, backward);
  };
  EXPECT_THAT(Replay(Execution::kEager, /*check_writes=*/true),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("backward of call \"c1\" on rank 0 left 1 of 36 elements of gradient of "
                                 "parameter \"u1.weight\" of unit \"u1\" unwritten")));
  REPRISE_ASSERT_OK_AND_ASSIGN(compute_, HashCompute(plan_.model));
  REPRISE_ASSERT_OK_AND_ASSIGN(const TensorId y0, plan_.model.FindTensor("y0"));
  compute_[c1_].backward = [y0, backward = compute_[c1_].backward](ComputeContext& context) {
    return LeaveUnwritten(context, context.input_gradient<BFloat16>(y0), 18, backward);
  };
  EXPECT_THAT(Replay(Execution::kEager, /*check_writes=*/true),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("left 18 of 18 elements of input_gradient of tensor \"y0\" unwritten")));
}

TEST_F(ComputeTest, CheckWritesTakesMinusOneForAWrittenInteger) {
  ModelBuilder b;
  const TensorId x = b.AddInput({.name = "x", .shape = {4}, .dtype = DType::kInt32});
  const TensorId y = b.AddOutput({.name = "y", .shape = {4}, .dtype = DType::kInt32});
  b.AddCall({.name = "negate", .inputs = {x}, .outputs = {y}});
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, b.Build());
  REPRISE_ASSERT_OK_AND_ASSIGN(plan_, PlanForward(model, 2, {}));
  int written = 4;
  compute_ = {{CallId(0), {.forward = [&written, y](ComputeContext& context) {
                 context.stream().host_queue().Enqueue(
                     [to = context.output<int32_t>(y).data, written] { std::fill_n(to, written, -1); });
                 return absl::OkStatus();
               }}}};
  EXPECT_THAT(Replay(Execution::kEager, /*check_writes=*/true), IsOk());
  written = 3;
  EXPECT_THAT(Replay(Execution::kEager, /*check_writes=*/true),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("left 1 of 4 elements of output")));
}

}  // namespace
}  // namespace reprise
