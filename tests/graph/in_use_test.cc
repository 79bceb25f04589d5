// Two threads in one world: whatever a second one calls is refused or right.
#include "graph/in_use.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <iostream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/graph/forward_session.h"
#include "reprise/graph/host_world.h"
#include "reprise/graph/train_session.h"
#include "tests/graph/session_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using ::testing::AllOf;
using testing::Dot;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::MakeDot;
using testing::StatusIs;

template <class F>
auto Elsewhere(const F& f) {
  return std::async(std::launch::async, f).get();
}

// Holds whoever comes by until it is let go; does so once, when armed.
class Gate {
 public:
  void Arm() { armed_ = true; }
  void Pass() {
    if (!armed_.exchange(false)) return;
    here_.set_value();
    open_.get_future().wait();
  }
  void AwaitSomebody() { here_.get_future().wait(); }
  void Open() { open_.set_value(); }

 private:
  std::atomic<bool> armed_ = false;
  std::promise<void> here_, open_;
};

// Training and evaluation of one dot product, whose compute passes the gate.
struct Everything {
  std::shared_ptr<Gate> gate = std::make_shared<Gate>();
  Dot dot;
  std::shared_ptr<World> world;
  std::shared_ptr<ShardedParameters> parameters;
  std::unique_ptr<TrainSession> train;
  std::unique_ptr<ForwardSession> forward;

  std::vector<float> X(float value) const { return std::vector<float>(5, value); }
  absl::Status Copy(float value) {
    for (int rank = 0; rank < 2; ++rank) {
      REPRISE_RETURN_IF_ERROR(train->CopyInput(rank, dot.x, X(value)));
    }
    return absl::OkStatus();
  }
  absl::Status CopyForward(float value, int variant = 0) {
    for (int rank = 0; rank < 2; ++rank) {
      REPRISE_RETURN_IF_ERROR(forward->CopyInput(rank, variant, dot.x, X(value)));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<float> Loss(int variant = 0) {
    REPRISE_ASSIGN_OR_RETURN(const std::vector<float> loss, forward->ReadOutput<float>(0, variant, dot.loss));
    return loss[0];
  }
  absl::StatusOr<float> Evaluate(float value, int variant = 0) {
    REPRISE_RETURN_IF_ERROR(CopyForward(value, variant));
    REPRISE_RETURN_IF_ERROR(forward->Replay(variant));
    return Loss(variant);
  }
  absl::Status Step(float value) {
    REPRISE_RETURN_IF_ERROR(train->BeginStep({.learning_rate = 0.25f}));
    REPRISE_RETURN_IF_ERROR(Copy(value));
    REPRISE_RETURN_IF_ERROR(train->RunMicrobatch());
    return train->EndStep();
  }
};

absl::StatusOr<std::unique_ptr<Everything>> MakeEverything(ReplayOrder order = ReplayOrder::kIssue) {
  auto all = std::make_unique<Everything>();
  all->dot = MakeDot({.keep_gradient = true});
  Compute& compute = all->dot.compute.at(all->dot.call);
  compute.forward = [gate = all->gate, forward = compute.forward](ComputeContext& context) {
    context.stream().host_queue().Enqueue([gate] { gate->Pass(); });  // in every replay
    return forward(context);
  };
  REPRISE_ASSIGN_OR_RETURN(all->world, CreateHostWorld({.size = 2, .order = order}));
  REPRISE_ASSIGN_OR_RETURN(all->parameters, ShardedParameters::Create(all->world, all->dot.model));
  REPRISE_RETURN_IF_ERROR(all->parameters->Initialize(Constant(1)));
  REPRISE_ASSIGN_OR_RETURN(
      all->train, TrainSession::Create(all->parameters, all->dot.model, all->dot.compute, {.optimizer = Sgd{}}));
  REPRISE_ASSIGN_OR_RETURN(
      all->forward,
      ForwardSession::Create(
          all->parameters, {{"one", all->dot.model, all->dot.compute}, {"two", all->dot.model, all->dot.compute}}, {}));
  return all;
}

struct Call {
  const char* name;
  std::function<absl::Status(Everything&)> make;
};

// Every public function that touches what threads share and answers by a status.
std::vector<Call> EveryCall() {
  return {
      {"World::Synchronize", [](Everything& all) { return all.world->Synchronize(); }},
      {"World::StartProfile", [](Everything& all) { return all.world->StartProfile(all.train->plan()); }},
      {"World::StopProfile", [](Everything& all) { return all.world->StopProfile().status(); }},
      {"World::Sum",
       [](Everything& all) {
         return all.world->Sum({1, 2}).status();
       }},
      {"ShardedParameters::Create",
       [](Everything& all) { return ShardedParameters::Create(all.world, all.dot.model).status(); }},
      {"ShardedParameters::Initialize", [](Everything& all) { return all.parameters->Initialize(Constant(3)); }},
      {"ShardedParameters::Write", [](Everything& all) { return all.parameters->Write("w", all.X(3)); }},
      {"ShardedParameters::Read", [](Everything& all) { return all.parameters->Read("w").status(); }},
      {"ShardedParameters::CheckSet", [](Everything& all) { return all.parameters->CheckSet("testing"); }},
      {"TrainSession::Create",
       [](Everything& all) {
         return TrainSession::Create(all.parameters, all.dot.model, all.dot.compute, {}).status();
       }},
      {"BeginStep", [](Everything& all) { return all.train->BeginStep({.learning_rate = 0}); }},
      {"CopyInput", [](Everything& all) { return all.train->CopyInput(0, all.dot.x, all.X(3)); }},
      {"RunMicrobatch", [](Everything& all) { return all.train->RunMicrobatch(); }},
      {"EndStep", [](Everything& all) { return all.train->EndStep(); }},
      {"DiscardGradients", [](Everything& all) { return all.train->DiscardGradients(); }},
      {"MarkParametersChanged", [](Everything& all) { return all.train->MarkParametersChanged(); }},
      {"FindNonFinite", [](Everything& all) { return all.train->FindNonFinite().status(); }},
      {"Synchronize", [](Everything& all) { return all.train->Synchronize(); }},
      {"ReadOutput", [](Everything& all) { return all.train->ReadOutput<float>(0, all.dot.loss).status(); }},
      {"ReadInputGradient", [](Everything& all) { return all.train->ReadInputGradient<float>(0, all.dot.x).status(); }},
      {"ReadGradient", [](Everything& all) { return all.train->ReadGradient("w").status(); }},
      {"ForwardSession::Create",
       [](Everything& all) {
         return ForwardSession::Create(all.parameters, {{"v", all.dot.model, all.dot.compute}}, {}).status();
       }},
      {"CopyInput", [](Everything& all) { return all.forward->CopyInput(0, 0, all.dot.x, all.X(3)); }},
      {"Replay", [](Everything& all) { return all.forward->Replay(0); }},
      {"ReadOutput", [](Everything& all) { return all.forward->ReadOutput<float>(0, 0, all.dot.loss).status(); }},
      {"Address", [](Everything& all) { return all.forward->Address(0, 0, all.dot.loss).status(); }},
      {"ClearState", [](Everything& all) { return all.forward->ClearState(0); }},
      {"Synchronize", [](Everything& all) { return all.forward->Synchronize(); }},
  };
}

void ExpectRefused(Everything& all, const std::string& inside) {
  for (const Call& call : EveryCall()) {
    EXPECT_THAT(call.make(all),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr(absl::StrCat(call.name, ": another thread is inside ", inside, " of this world"))))
        << call.name;
  }
  EXPECT_THAT(all.train->PollMetrics(), IsEmpty());
}

class InUseTest : public ::testing::TestWithParam<ReplayOrder> {
 protected:
  void SetUp() override {
    for (std::unique_ptr<Everything>* all : {&all_, &alone_}) {
      absl::StatusOr<std::unique_ptr<Everything>> made = MakeEverything(GetParam());
      ASSERT_THAT(made, IsOk());
      *all = *std::move(made);
    }
  }
  // All is as if there had never been another thread.
  void ExpectEqual() {
    const auto metrics = [](Everything& all) {
      std::vector<float> values;
      for (const StepMetrics& m : all.train->PollMetrics()) values.insert(values.end(), {m.loss, m.gradient_norm});
      return values;
    };
    EXPECT_EQ(metrics(*all_), metrics(*alone_));
    EXPECT_EQ(*all_->parameters->Read("w"), *alone_->parameters->Read("w"));
    EXPECT_EQ(*all_->Evaluate(2), *alone_->Evaluate(2));
  }

  std::unique_ptr<Everything> all_, alone_;
};

INSTANTIATE_TEST_SUITE_P(Orders, InUseTest, ::testing::Values(ReplayOrder::kIssue, ReplayOrder::kThreads));

TEST_P(InUseTest, EveryCallIsRefusedWhileAReplayRuns) {
  ASSERT_THAT(alone_->Step(3), IsOk());
  ASSERT_THAT(alone_->Step(3), IsOk());
  ASSERT_THAT(all_->Step(3), IsOk());
  ASSERT_THAT(all_->train->BeginStep({.learning_rate = 0.25f}), IsOk());
  ASSERT_THAT(all_->Copy(3), IsOk());
  const int64_t version = all_->parameters->version();
  all_->gate->Arm();
  std::thread intruder([&] {
    all_->gate->AwaitSomebody();
    ExpectRefused(*all_, "RunMicrobatch");
    EXPECT_EQ(all_->parameters->version(), version);
    all_->gate->Open();
  });
  EXPECT_THAT(all_->train->RunMicrobatch(), IsOk());
  intruder.join();
  EXPECT_THAT(all_->train->EndStep(), IsOk());
  ExpectEqual();
}

TEST_P(InUseTest, EveryCallIsRefusedWhileParametersAreInitialized) {
  all_->gate->Arm();
  std::thread intruder([&] {
    all_->gate->AwaitSomebody();
    ExpectRefused(*all_, "ShardedParameters::Initialize");
    all_->gate->Open();
  });
  EXPECT_THAT(all_->parameters->Initialize([&](const ParameterSpec&, int64_t, absl::Span<float> values) {
    all_->gate->Pass();
    // Calls of the thread that is inside may nest.
    EXPECT_THAT(all_->world->Synchronize(), IsOk());
    for (float& value : values) value = 5;
  }),
              IsOk());
  intruder.join();
  ASSERT_THAT(alone_->parameters->Initialize(Constant(5)), IsOk());
  ExpectEqual();
}

TEST_P(InUseTest, EveryCallIsRefusedWhileASessionIsMade) {
  all_->gate->Arm();
  std::thread intruder([&] {
    all_->gate->AwaitSomebody();
    ExpectRefused(*all_, "TrainSession::Create");
    all_->gate->Open();
  });
  EXPECT_THAT(TrainSession::Create(all_->parameters, all_->dot.model, all_->dot.compute, {}), IsOk());
  intruder.join();
  ExpectEqual();
}

TEST_P(InUseTest, ThreadsMayTakeTurnsAtWholeSteps) {
  for (int step = 0; step < 4; ++step) {
    ASSERT_THAT(alone_->Step(static_cast<float>(step)), IsOk());
    const auto work = [&]() -> absl::Status {
      REPRISE_RETURN_IF_ERROR(all_->Step(static_cast<float>(step)));
      REPRISE_ASSIGN_OR_RETURN(const std::vector<float> loss, all_->train->ReadOutput<float>(0, all_->dot.loss));
      EXPECT_EQ(loss, *alone_->train->ReadOutput<float>(0, alone_->dot.loss));
      REPRISE_ASSIGN_OR_RETURN(const float evaluated, all_->Evaluate(1));
      EXPECT_EQ(evaluated, *alone_->Evaluate(1));
      return absl::OkStatus();
    };
    EXPECT_THAT(step % 2 == 0 ? work() : Elsewhere(work), IsOk());
  }
  ExpectEqual();
}

TEST_P(InUseTest, AStepBelongsToTheThreadThatBeganIt) {
  ASSERT_THAT(all_->Step(1), IsOk());
  ASSERT_THAT(all_->train->BeginStep({.learning_rate = 0.25f}), IsOk());
  ASSERT_THAT(all_->Copy(3), IsOk());
  const std::vector<std::string> of_a_step = {"CopyInput",  "RunMicrobatch",     "EndStep",
                                              "ReadOutput", "ReadInputGradient", "ReadGradient"};
  int refused = 0;
  const auto expect_refused = [&] {
    for (const Call& call : EveryCall()) {
      if (std::find(of_a_step.begin(), of_a_step.end(), call.name) == of_a_step.end()) continue;
      const absl::Status status = call.make(*all_);
      // The forward session's calls of the same names are not of the step.
      if (absl::StrContains(status.message(), "no value yet") || status.ok()) continue;
      ++refused;
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr(absl::StrCat(call.name, ": step 1 was begun by another thread; "))));
    }
    EXPECT_THAT(all_->train->BeginStep({.learning_rate = 0}),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("of step 1")));
    EXPECT_THAT(all_->train->Synchronize(), IsOk());
  };
  Elsewhere(expect_refused);
  EXPECT_EQ(refused, 6);
  ASSERT_THAT(all_->train->RunMicrobatch(), IsOk());
  Elsewhere(expect_refused);
  EXPECT_EQ(refused, 12);
  // An evaluation meanwhile has the weights that the step began with.
  ASSERT_THAT(alone_->Step(1), IsOk());
  EXPECT_EQ(*Elsewhere([&] { return all_->Evaluate(2); }), *alone_->Evaluate(2));
  EXPECT_EQ(Elsewhere([&] { return all_->train->PollMetrics(); }).size(), 1u);
  EXPECT_THAT(all_->train->EndStep(), IsOk());
  ASSERT_THAT(alone_->Step(3), IsOk());
  EXPECT_EQ(*all_->parameters->Read("w"), *alone_->parameters->Read("w"));
}

TEST_P(InUseTest, AnyThreadMayDiscardTheStepOfAnother) {
  Elsewhere([&] { ASSERT_THAT(all_->train->BeginStep({.learning_rate = 0}), IsOk()); });
  ASSERT_THAT(Elsewhere([&] { return all_->train->DiscardGradients(); }), IsOk());
  EXPECT_THAT(all_->Step(3), IsOk());
  ASSERT_THAT(alone_->Step(3), IsOk());
  ExpectEqual();
}

TEST_P(InUseTest, AnEvaluationBelongsToOneThread) {
  const float of_2 = *alone_->Evaluate(2), of_3 = *alone_->Evaluate(3);
  // Nobody replays what another thread copied.
  ASSERT_THAT(all_->CopyForward(2), IsOk());
  EXPECT_THAT(Elsewhere([&] { return all_->forward->Replay(0); }),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("lacks input \"x\" of rank 0"), HasSubstr("another thread copied"))));
  // Nor a mixture.
  EXPECT_THAT(Elsewhere([&] { return all_->forward->CopyInput(0, 0, all_->dot.x, all_->X(3)); }), IsOk());
  ASSERT_THAT(all_->forward->CopyInput(0, 0, all_->dot.x, all_->X(2)), IsOk());
  EXPECT_THAT(all_->forward->Replay(0), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                 HasSubstr("lacks input \"x\" of rank 1; call CopyInput")));
  EXPECT_EQ(*all_->Evaluate(2), of_2);
  // Nor reads the result of another instead of its own.
  EXPECT_EQ(*Elsewhere([&] { return all_->Evaluate(3); }), of_3);
  EXPECT_THAT(all_->Loss(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("ReadOutput: another thread has replayed since this one did")));
  EXPECT_EQ(*Elsewhere([&] { return all_->Loss(); }), of_3) << "a thread that replayed nothing";
  EXPECT_EQ(*all_->Evaluate(2), of_2);
  // Variants are apart.
  EXPECT_EQ(*Elsewhere([&] { return all_->Evaluate(3, 1); }), of_3);
  EXPECT_EQ(*all_->Loss(), of_2);
}

TEST_P(InUseTest, AnOutputOfTrainingIsReadBeforeAnotherThreadsStep) {
  ASSERT_THAT(all_->Step(2), IsOk());
  EXPECT_THAT(all_->train->ReadOutput<float>(0, all_->dot.loss), IsOk());
  EXPECT_THAT(Elsewhere([&] { return all_->train->ReadOutput<float>(0, all_->dot.loss); }), IsOk());
  ASSERT_THAT(Elsewhere([&] { return all_->Step(3); }), IsOk());
  for (const absl::Status& status : {all_->train->ReadOutput<float>(0, all_->dot.loss).status(),
                                     all_->train->ReadInputGradient<float>(0, all_->dot.x).status()}) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another thread has replayed since")));
  }
}

// The caller's only references are given away, and the call fails: the guard of the world outlives the world's use.
TEST(InUseCreateTest, AFailureMayFreeTheWorld) {
  const auto parameters = [](const Dot& dot) { return *ShardedParameters::Create(*CreateHostWorld({}), dot.model); };
  const Dot dot = MakeDot();
  EXPECT_THAT(TrainSession::Create(parameters(dot), dot.model, {}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no forward")));
  EXPECT_THAT(ForwardSession::Create(parameters(dot), {{"v", dot.model, {}}}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no forward")));
}

// ---- two threads that do not take turns ----

// Calls until it is not refused because another thread is inside; a refused call has changed nothing.
template <class F>
auto Persist(const F& call) {
  while (true) {
    auto result = call();
    const absl::Status status = testing::StatusOf(result);
    if (!absl::StrContains(status.message(), "another thread is inside")) return result;
    std::this_thread::yield();
  }
}

// One trains; two others evaluate on the same variant, with inputs of their own, whatever the others do. Every answer
// is that of some complete step, of their own input, and the steps only grow.
TEST(InUseStressTest, EveryAnswerIsThatOfACompleteStep) {
  constexpr int kSteps = 60;
  for (const ReplayOrder order : {ReplayOrder::kIssue, ReplayOrder::kThreads}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto alone, MakeEverything(order));
    std::vector<float> unit_losses = {*alone->Evaluate(1)};  // after so many steps
    for (int step = 0; step < kSteps; ++step) {
      ASSERT_THAT(alone->Step(static_cast<float>(step % 3)), IsOk());
      unit_losses.push_back(*alone->Evaluate(1));
    }
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto all, MakeEverything(order));
    std::atomic<bool> done = false;
    std::atomic<int> answers = 0;
    const auto evaluate = [&](float x) {
      size_t step = 0;
      while (!done) {
        const absl::StatusOr<float> loss = all->Evaluate(x);
        if (!loss.ok()) {
          EXPECT_EQ(loss.status().code(), absl::StatusCode::kFailedPrecondition) << loss.status();
          std::this_thread::yield();
          continue;
        }
        ++answers;
        while (step < unit_losses.size() && unit_losses[step] * x != *loss) ++step;
        ASSERT_LT(step, unit_losses.size()) << *loss << " with input " << x;
      }
    };
    std::thread evaluator2([&] { evaluate(2); }), evaluator4([&] { evaluate(4); });
    for (int step = 0; step < kSteps; ++step) {
      const float x = static_cast<float>(step % 3);
      ASSERT_THAT(Persist([&] { return all->train->BeginStep({.learning_rate = 0.25f}); }), IsOk());
      ASSERT_THAT(Persist([&] { return all->Copy(x); }), IsOk());
      ASSERT_THAT(Persist([&] { return all->train->RunMicrobatch(); }), IsOk());
      ASSERT_THAT(Persist([&] { return all->train->EndStep(); }), IsOk());
    }
    while (answers == 0) std::this_thread::yield();
    done = true;
    evaluator2.join();
    evaluator4.join();
    EXPECT_EQ(*all->Evaluate(1), unit_losses.back());
    EXPECT_EQ(*all->parameters->Read("w"), *alone->parameters->Read("w"));
  }
}

// What entering costs, for the record; the first call of a thread and a nested one.
TEST(InUseCostTest, EnteringTakesNanoseconds) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, CreateHostWorld({}));
  constexpr int kTimes = 1'000'000;
  const auto time = [&] {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kTimes; ++i) {
      const internal::Entry entry(*world, "testing");
      ASSERT_TRUE(entry.ok());
    }
    const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
    std::cout << elapsed.count() / kTimes << " ns\n";
  };
  time();
  const internal::Entry entry(*world, "testing");
  time();
}

}  // namespace
}  // namespace reprise
