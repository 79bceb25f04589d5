// Compute functions that break their contract are refused at Create, by name, in every order of host replay.
#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "reprise/graph/host_world.h"
#include "reprise/graph/train_session.h"
#include "tests/graph/residual_model.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::kRanks;
using testing::kSize;
using testing::Residual;
using testing::StatusIs;

constexpr absl::StatusCode kPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr ReplayOrder kOrders[] = {ReplayOrder::kIssue, ReplayOrder::kAdversarial, ReplayOrder::kThreads};

template <class T>
class CheckWritesTest : public ::testing::Test {
 protected:
  // Refused in every order and execution, and accepted without the check.
  void ExpectRefused(const std::vector<std::string>& words) {
    for (const Execution execution : {Execution::kGraph, Execution::kEager}) {
      for (const ReplayOrder order : kOrders) {
        const absl::Status status = residual_.Create({.run = {.execution = execution}}, order);
        EXPECT_EQ(status.code(), kPrecondition) << status;
        for (const std::string& word : words) EXPECT_THAT(std::string(status.message()), HasSubstr(word));
      }
    }
    EXPECT_THAT(residual_.Create({.run = {.check_writes = false}}), IsOk());
  }

  Residual<T> residual_;
};
using Dtypes = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(CheckWritesTest, Dtypes);

TYPED_TEST(CheckWritesTest, AcceptsWhatKeepsTheContract) {
  for (const ReplayOrder order : kOrders) {
    for (const Reduce reduce : {Reduce::kEveryMicrobatch, Reduce::kOncePerStep}) {
      // Unsharded gradients are fp32.
      if (reduce == Reduce::kOncePerStep && std::is_same_v<TypeParam, BFloat16>) continue;
      for (const int per_graph : {1, 2}) {
        PlanOptions plan = {.microbatches_per_graph = per_graph, .reduce = reduce};
        EXPECT_THAT(this->residual_.Create({.run = {.plan = plan}}, order), IsOk());
      }
    }
  }
}

TYPED_TEST(CheckWritesTest, AFunctionThatWorksAtOnce) {
  Residual<TypeParam>& r = this->residual_;
  r.compute[r.branch_call].forward = [&r](ComputeContext& c) {
    const auto y = c.input<TypeParam>(r.y);
    const auto b = c.output<TypeParam>(r.branch);
    for (int64_t i = 0; i < kSize; ++i) b.data[i] = TypeParam(2 * float(y.data[i]));
    return absl::OkStatus();
  };
  this->ExpectRefused({"forward of call \"branch\" on rank ",
                       " wrote 6 of 6 elements of output of tensor \"b\" while it "
                       "was called",
                       "enqueue the work on the stream"});
}

TYPED_TEST(CheckWritesTest, ASumThatIsMadeAtOnce) {
  Residual<TypeParam>& r = this->residual_;
  r.compute[r.branch_call].backward = [&r](ComputeContext& c) {
    const auto dy = c.input_gradient<TypeParam>(r.y);
    for (int64_t i = 0; i < kSize; ++i) Residual<TypeParam>::Store(dy, i, 1);
    return absl::OkStatus();
  };
  this->ExpectRefused(
      {"backward of call \"branch\" on rank ", " of 6 elements of input_gradient of tensor \"y\" while"});
}

TYPED_TEST(CheckWritesTest, AGradientThatIsAssignedWhereItShouldBeAddedTo) {
  Residual<TypeParam>& r = this->residual_;
  r.compute[r.branch_call].backward = [&r](ComputeContext& c) {
    return r.Enqueue(c, [db = c.output_gradient<TypeParam>(r.branch), dy = c.input_gradient<TypeParam>(r.y)] {
      for (int64_t i = 0; i < kSize; ++i) dy.data[i] = TypeParam(2 * float(db.data[i]));
    });
  };
  this->ExpectRefused({"backward of call \"branch\" on rank ",
                       " assigned 6 of 6 elements of input_gradient of tensor \"y\", whose mode is kAdd"});
}

TYPED_TEST(CheckWritesTest, AGradientThatIsAddedToWhereItShouldBeAssigned) {
  Residual<TypeParam>& r = this->residual_;
  r.compute[r.make_call].backward = [&r](ComputeContext& c) {
    return r.Enqueue(c, [dw = c.parameter_gradient<TypeParam>(r.w)] {
      for (int64_t i = 0; i < kSize; ++i) dw.data[i] = TypeParam(float(dw.data[i]) + 1);
    });
  };
  this->ExpectRefused({"backward of call \"make\" on rank ",
                       " read 6 of 6 elements of gradient of parameter \"w\" of unit \"u\" that it has to assign"});
}

TYPED_TEST(CheckWritesTest, ASumWithAFactor) {
  Residual<TypeParam>& r = this->residual_;
  r.compute[r.branch_call].backward = [&r](ComputeContext& c) {
    return r.Enqueue(c,
                     [dy = c.input_gradient<TypeParam>(r.y)] { dy.data[4] = TypeParam(0.5f * float(dy.data[4]) + 1); });
  };
  this->ExpectRefused({"backward of call \"branch\" on rank ",
                       " did not add to 1 of 6 elements of input_gradient of "
                       "tensor \"y\"",
                       "element 4 went from 0 to 1, but from "});
}

TYPED_TEST(CheckWritesTest, AGradientThatIsLeftUnwritten) {
  Residual<TypeParam>& r = this->residual_;
  r.compute[r.make_call].backward = [&r](ComputeContext& c) {
    return r.Enqueue(c, [dw = c.parameter_gradient<TypeParam>(r.w)] { std::fill_n(dw.data, kSize - 2, TypeParam(1)); });
  };
  this->ExpectRefused({"backward of call \"make\" on rank ",
                       " left 2 of 6 elements of gradient of parameter \"w\" of unit \"u\" unwritten"});
}

TYPED_TEST(CheckWritesTest, ChangesOfWhatMayOnlyBeRead) {
  Residual<TypeParam>& r = this->residual_;
  const auto change = [&r](CallId call, bool backward, const std::function<const TypeParam*(ComputeContext&)>& what) {
    ComputeFunction& function = backward ? r.compute[call].backward : r.compute[call].forward;
    function = [&r, what, inner = function](ComputeContext& c) {
      const TypeParam* data = what(c);
      REPRISE_RETURN_IF_ERROR(inner(c));
      return r.Enqueue(c, [data] { *const_cast<TypeParam*>(data) = TypeParam(float(*data) + 1); });
    };
  };
  const ComputeTable good = r.compute;
  change(r.branch_call, false, [&r](ComputeContext& c) { return c.input<TypeParam>(r.y).data; });
  this->ExpectRefused({"forward of call \"branch\" on rank ", " elements of input of tensor \"y\", which it may only"});
  r.compute = good;
  change(r.make_call, false, [&r](ComputeContext& c) { return c.parameter<TypeParam>(r.w).data; });
  this->ExpectRefused(
      {"forward of call \"make\" on rank ", " elements of parameter \"w\" of unit \"u\", which it may"});
  r.compute = good;
  change(r.join_call, true, [&r](ComputeContext& c) { return c.saved<const TypeParam>(r.branch).data; });
  this->ExpectRefused({"backward of call \"join\" on rank ", " elements of saved of tensor \"b\", which it may only"});
  r.compute = good;
  change(r.branch_call, true, [&r](ComputeContext& c) { return c.output_gradient<TypeParam>(r.branch).data; });
  this->ExpectRefused({"backward of call \"branch\" on rank ", " elements of output_gradient of tensor \"b\", which"});
}

TYPED_TEST(CheckWritesTest, OutputsMadeOfWhatScratchHeldBefore) {
  Residual<TypeParam>& r = this->residual_;
  r.compute[r.branch_call].forward = [&r](ComputeContext& c) {
    return r.Enqueue(c, [scratch = c.scratch<int32_t>({1}), b = c.output<TypeParam>(r.branch)] {
      std::fill_n(b.data, kSize, TypeParam(1));
      b.data[3] = TypeParam(static_cast<float>(scratch.data[0] % 7));
    });
  };
  this->ExpectRefused({"forward of call \"branch\" on rank ",
                       " gave other bits to 1 of 6 elements of output of tensor \"b\", the first at element 3"});
}

// A function that stops writing after some of its calls is found, wherever that is: by a later run of the check, by
// another rank or schedule, or in its recording.
TYPED_TEST(CheckWritesTest, AFunctionThatEnqueuesLessWhenItIsCalledAgain) {
  Residual<TypeParam>& r = this->residual_;
  const ComputeTable good = r.compute;
  for (const auto& [call, backward] : {std::pair(r.make_call, false), std::pair(r.make_call, true),
                                       std::pair(r.branch_call, true), std::pair(r.join_call, false)}) {
    int calls = 0, writes = std::numeric_limits<int>::max();
    r.compute = good;
    ComputeFunction& function = backward ? r.compute[call].backward : r.compute[call].forward;
    function = [&, inner = function](ComputeContext& c) { return calls++ < writes ? inner(c) : absl::OkStatus(); };
    ASSERT_THAT(r.Create(), IsOk());
    const int all = calls;
    // A sum that no run makes is a sum of zeros.
    for (writes = call == r.branch_call ? 1 : 0; writes < all; ++writes) {
      calls = 0;
      EXPECT_THAT(r.Create(), StatusIs(kPrecondition, AllOf(HasSubstr("of call \""), HasSubstr("on rank "))))
          << writes << " of " << all << " calls write";
    }
    calls = 0;
    EXPECT_THAT(r.Create(), IsOk());
  }
}

TYPED_TEST(CheckWritesTest, ARecordingThatLacksASum) {
  Residual<TypeParam>& r = this->residual_;
  std::atomic<int> calls = 0;
  int writes = std::numeric_limits<int>::max();
  r.compute[r.branch_call].backward = [&, inner = r.compute[r.branch_call].backward](ComputeContext& c) {
    return calls++ < writes ? inner(c) : absl::OkStatus();
  };
  ASSERT_THAT(r.Create(), IsOk());
  writes = calls - 1;
  calls = 0;
  EXPECT_THAT(r.Create(), StatusIs(kPrecondition, AllOf(HasSubstr("backward of call \"branch\" on rank 1 wrote other "
                                                                  "bits to the 6 elements of input_gradient of tensor "
                                                                  "\"y\" in its recording than when it ran before"))));
}

// Of a large gradient parts are compared.
TEST(CheckWritesSizeTest, ALargeGradientThatIsAssignedWhereItShouldBeAddedTo) {
  constexpr int64_t kElements = 3000001;
  ModelBuilder builder;
  const UnitId unit = builder.AddUnit("u");
  const ParameterId w = builder.AddParameter(unit, {.name = "w", .shape = {kElements}, .dtype = DType::kFloat32});
  const TensorId x = builder.AddInput({.name = "x", .shape = {1}, .dtype = DType::kFloat32});
  const TensorId loss = builder.AddOutput({.name = "loss", .dtype = DType::kFloat32});
  const CallId call = builder.AddCall({.name = "first", .units = {unit}, .inputs = {x}, .outputs = {loss}});
  builder.SetLoss(loss);
  const Model model = *builder.Build();
  int64_t assigned = 0;  // of the last elements
  const ComputeTable compute = {
      {call,
       {[=](ComputeContext& c) {
          return Residual<float>::Enqueue(
              c, [w = c.parameter<float>(w), loss = c.output<float>(loss)] { loss.data[0] = w.data[0]; });
        },
        [w, &assigned](ComputeContext& c) {
          return Residual<float>::Enqueue(c, [dw = c.parameter_gradient<float>(w), assigned = assigned] {
            for (int64_t i = 0; i < kElements; ++i) {
              const bool adds = dw.mode == WriteMode::kAdd && i < kElements - assigned;
              dw.data[i] = (adds ? dw.data[i] : 0) + (i == 0 ? 1.0f : 0.0f);
            }
          });
        }}}};
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, ShardedParameters::Create(*CreateHostWorld({}), model));
  const auto create = [&] {
    return TrainSession::Create(parameters, model, compute, {.run = {.plan = {.reduce = Reduce::kOncePerStep}}})
        .status();
  };
  EXPECT_THAT(create(), IsOk());
  assigned = kElements;
  EXPECT_THAT(create(),
              StatusIs(kPrecondition, HasSubstr("assigned 2097152 of 2097152 elements looked at of gradient of "
                                                "parameter \"w\" of unit \"u\", whose mode is kAdd")));
  assigned = 1;
  EXPECT_THAT(create(), StatusIs(kPrecondition, HasSubstr("assigned 1 of 2097152 elements looked at")));
}

// ---- what warm-up leaves ----

TEST(CheckWritesWarmUpTest, TrainingIsTheSameWithAndWithoutTheCheck) {
  Residual<float> r;
  std::vector<std::vector<float>> weights;
  std::vector<float> losses;
  for (const bool check_writes : {true, false}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters,
                                 ShardedParameters::Create(*CreateHostWorld({.size = kRanks}), r.model));
    ASSERT_THAT(parameters->Initialize(Normal(1, 1)), IsOk());
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto before, parameters->Read("w"));
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto session, TrainSession::Create(parameters, r.model, r.compute,
                                                                          {.run = {.check_writes = check_writes}}));
    EXPECT_EQ(*parameters->Read("w"), before);
    EXPECT_TRUE(session->PollMetrics().empty());
    for (int step = 0; step < 3; ++step) {
      ASSERT_THAT(session->BeginStep({.learning_rate = 0.1f, .microbatches = 2}), IsOk());
      for (int microbatch = 0; microbatch < 2; ++microbatch) {
        for (int rank = 0; rank < kRanks; ++rank) {
          ASSERT_THAT(session->CopyInput(rank, r.x, std::vector<float>(kSize, 0.5f + step + microbatch + rank)),
                      IsOk());
        }
        ASSERT_THAT(session->RunMicrobatch(), IsOk());
      }
      ASSERT_THAT(session->EndStep(), IsOk());
    }
    weights.push_back(*parameters->Read("w"));
    for (const StepMetrics& m : session->PollMetrics()) losses.push_back(m.loss);
  }
  EXPECT_EQ(weights[0], weights[1]);
  ASSERT_EQ(losses.size(), 6u);
  EXPECT_EQ(std::vector<float>(losses.begin(), losses.begin() + 3),
            std::vector<float>(losses.begin() + 3, losses.end()));
}

}  // namespace
}  // namespace reprise
