// Compute functions that use what they are given while they are called, and sums whose starts matter, at Create.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "reprise/graph/forward_session.h"
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

// Creates the session in every order and execution.
void ForEachCreate(const std::function<absl::Status(RunOptions, ReplayOrder)>& create,
                   const std::function<void(const absl::Status&)>& expect) {
  for (const Execution execution : {Execution::kGraph, Execution::kEager}) {
    for (const ReplayOrder order : kOrders) expect(create({.execution = execution}, order));
  }
}

// ---- reads of operands by functions that are called ----

// y = w x + label, total += x, save z = x; loss = sum of y y. Each operand can be read when the function is called.
template <class T>
class Reader {
 public:
  enum class Operand { kNone, kParameter, kInput, kLabel, kState, kSaved, kPrivate, kOutputGradient };

  explicit Reader(bool external = false) {
    constexpr DType dtype = DTypeOf<T>::value;
    ModelBuilder builder;
    const UnitId unit = builder.AddUnit("u");
    const ParameterId w = builder.AddParameter(unit, {.name = "w", .shape = {kSize}, .dtype = dtype});
    const TensorId x = builder.AddInput({.name = "x", .shape = {kSize}, .dtype = dtype, .external = external});
    const TensorId label = builder.AddInput({.name = "label", .shape = {kSize}, .dtype = DType::kInt32});
    const TensorId total = builder.AddState({.name = "total", .shape = {kSize}, .dtype = dtype});
    const TensorId z = builder.AddActivation({.name = "z", .shape = {kSize}, .dtype = dtype});
    const TensorId y = builder.AddActivation({.name = "y", .shape = {kSize}, .dtype = dtype});
    const TensorId loss = builder.AddOutput({.name = "loss", .dtype = DType::kFloat32});
    const CallId work = builder.AddCall(
        {.name = "work", .units = {unit}, .inputs = {x, label}, .outputs = {y}, .saved = {x, z}, .state = {total}});
    const CallId end = builder.AddCall({.name = "end", .inputs = {y}, .outputs = {loss}, .saved = {y}});
    builder.SetLoss(loss);
    model = *builder.Build();
    input = x;
    compute[work].forward = [=, this](ComputeContext& c) {
      const auto totals = c.state<T>(total);
      return Residual<T>::Enqueue(
          c,
          [w = View(c.parameter<T>(w), Operand::kParameter), x = View(c.input<T>(x), Operand::kInput),
           label = View(c.input<int32_t>(label), Operand::kLabel),
           before = View(TensorView<const T>(totals), Operand::kState), totals, z = c.saved<T>(z), y = c.output<T>(y)] {
            for (int64_t i = 0; i < kSize; ++i) {
              y.data[i] = T(float(w(i)) * float(x(i)) + float(label(i)));
              z.data[i] = x(i);
              totals.data[i] = T(float(before(i)) + float(x(i)));
            }
          });
    };
    compute[work].backward = [=, this](ComputeContext& c) {
      return Residual<T>::Enqueue(c, [dy = View(c.output_gradient<T>(y), Operand::kOutputGradient),
                                      z = View(c.saved<const T>(z), Operand::kPrivate),
                                      x = View(c.saved<const T>(x), Operand::kSaved), dw = c.parameter_gradient<T>(w)] {
        for (int64_t i = 0; i < kSize; ++i) {
          Residual<T>::Store(dw, i, float(dy(i)) * (float(x(i)) + float(z(i))));
        }
      });
    };
    compute[end] = {[=](ComputeContext& c) {
                      return Residual<T>::Enqueue(c, [y = c.input<T>(y), loss = c.output<float>(loss)] {
                        loss.data[0] = 0;
                        for (int64_t i = 0; i < kSize; ++i) loss.data[0] += float(y.data[i]) * float(y.data[i]);
                      });
                    },
                    [=](ComputeContext& c) {
                      return Residual<T>::Enqueue(c, [y = c.saved<const T>(y), dy = c.input_gradient<T>(y),
                                                      dloss = c.output_gradient<float>(loss)] {
                        for (int64_t i = 0; i < kSize; ++i) {
                          Residual<T>::Store(dy, i, 2 * dloss.data[0] * float(y.data[i]));
                        }
                      });
                    }};
  }

  absl::Status Create(RunOptions run, ReplayOrder order) const {
    REPRISE_ASSIGN_OR_RETURN(std::shared_ptr<World> world, CreateHostWorld({.size = kRanks, .order = order}));
    REPRISE_ASSIGN_OR_RETURN(const auto parameters, ShardedParameters::Create(std::move(world), model));
    REPRISE_RETURN_IF_ERROR(parameters->Initialize(Constant(3)));
    return TrainSession::Create(parameters, model, compute, {.run = std::move(run)}).status();
  }

  Model model;
  ComputeTable compute;
  TensorId input;
  Operand read_at_call = Operand::kNone;

 private:
  // Element i of the operand; of a copy that is made now, if it is the one to read at the call.
  template <class V>
  std::function<V(int64_t)> View(TensorView<const V> view, Operand operand) const {
    if (operand != read_at_call || view.data == nullptr) return [view](int64_t i) { return view.data[i]; };
    return [copy = std::vector<V>(view.data, view.data + kSize)](int64_t i) { return copy[static_cast<size_t>(i)]; };
  }
};

template <class T>
class CheckCallsTest : public ::testing::Test {};
using Dtypes = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(CheckCallsTest, Dtypes);

TYPED_TEST(CheckCallsTest, AnOperandThatIsReadWhenTheFunctionIsCalled) {
  Reader<TypeParam> reader;
  using Operand = typename Reader<TypeParam>::Operand;
  const auto create = [&](RunOptions run, ReplayOrder order) { return reader.Create(std::move(run), order); };
  ForEachCreate(create, [](const absl::Status& status) { EXPECT_THAT(status, IsOk()); });
  for (const auto& read : {std::pair(Operand::kParameter, "forward"), std::pair(Operand::kInput, "forward"),
                           std::pair(Operand::kLabel, "forward"), std::pair(Operand::kState, "forward"),
                           std::pair(Operand::kSaved, "backward"), std::pair(Operand::kPrivate, "backward"),
                           std::pair(Operand::kOutputGradient, "backward")}) {
    reader.read_at_call = read.first;
    ForEachCreate(create, [&](const absl::Status& status) {
      EXPECT_THAT(status,
                  StatusIs(kPrecondition, AllOf(HasSubstr(std::string(read.second) + " of call \"work\" on rank "),
                                                HasSubstr("bits that depend on what memory held when the function was "
                                                          "called; read and write only in what is enqueued"))))
          << static_cast<int>(read.first);
    });
    EXPECT_THAT(reader.Create({.check_writes = false}, ReplayOrder::kIssue), IsOk());
  }
}

// Ranks may share it, and it may be the user's to read meanwhile.
TYPED_TEST(CheckCallsTest, AnExternalInputIsAsItWasWhileTheFunctionIsCalled) {
  Reader<TypeParam> reader(/*external=*/true);
  alignas(16) TypeParam memory[kSize];
  std::fill_n(memory, kSize, TypeParam(5.0f));
  for (auto& [call, functions] : reader.compute) {
    functions.forward = [&memory, inner = functions.forward](ComputeContext& c) {
      const bool is_kept = std::all_of(memory, memory + kSize, [](TypeParam value) { return float(value) == 5.0f; });
      return is_kept ? inner(c) : absl::InternalError("the user's memory was changed");
    };
  }
  for (const ReplayOrder order : kOrders) {
    EXPECT_THAT(reader.Create({.external = {{0, reader.input, memory, sizeof(memory)},
                                            {1, reader.input, memory, sizeof(memory)}}},
                              order),
                IsOk());
  }
}

// ---- writes by functions that are called ----

TYPED_TEST(CheckCallsTest, StateScratchAndOperandsThatAreWrittenWhenTheFunctionIsCalled) {
  constexpr DType dtype = DTypeOf<TypeParam>::value;
  ModelBuilder builder;
  const TensorId x = builder.AddInput({.name = "x", .shape = {kSize}, .dtype = dtype});
  const TensorId total = builder.AddState({.name = "total", .shape = {kSize}, .dtype = dtype, .external = true});
  const TensorId y = builder.AddOutput({.name = "y", .shape = {kSize}, .dtype = dtype});
  const CallId call =
      builder.AddCall({.name = "count", .inputs = {x}, .outputs = {y}, .state = {total}, .scratch_bytes = 64});
  const Model model = *builder.Build();
  enum class Written { kNothing, kState, kScratch, kInput, kAndFails } written = Written::kNothing;
  const ComputeTable compute = {{call, {.forward = [&](ComputeContext& c) {
                                   const auto from = c.input<TypeParam>(x);
                                   const auto totals = c.state<TypeParam>(total);
                                   const auto to = c.output<TypeParam>(y);
                                   const auto scratch = c.scratch<uint8_t>({64});
                                   if (written == Written::kState)
                                     totals.data[2] = TypeParam(float(totals.data[2]) + 1);
                                   if (written == Written::kScratch) scratch.data[3] = 1;
                                   if (written == Written::kInput)
                                     const_cast<TypeParam*>(from.data)[1] = TypeParam(float(from.data[1]) * 2);
                                   if (written == Written::kAndFails) return absl::InternalError("no");
                                   return Residual<TypeParam>::Enqueue(c, [=] {
                                     for (int64_t i = 0; i < kSize; ++i) {
                                       totals.data[i] = TypeParam(float(totals.data[i]) + 1);
                                       to.data[i] = TypeParam(float(from.data[i]) + float(totals.data[i]));
                                     }
                                   });
                                 }}}};
  alignas(16) TypeParam memory[kRanks][2 * kSize + 4];
  const auto create = [&](RunOptions run, ReplayOrder order) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(std::shared_ptr<World> world, CreateHostWorld({.size = kRanks, .order = order}));
    REPRISE_ASSIGN_OR_RETURN(const auto parameters, ShardedParameters::Create(std::move(world), model));
    for (int rank = 0; rank < kRanks; ++rank) {
      std::fill_n(memory[rank], kSize, TypeParam(7.0f));
      run.external.push_back({rank, total, memory[rank], sizeof(memory[rank])});
    }
    const absl::Status status =
        ForwardSession::Create(parameters, {{"count", model, compute}}, std::move(run)).status();
    for (const auto& totals : memory) {
      EXPECT_TRUE(std::all_of(totals, totals + kSize, [](TypeParam value) { return float(value) == 7.0f; }));
    }
    return status;
  };
  ForEachCreate(create, [](const absl::Status& status) { EXPECT_THAT(status, IsOk()); });
  for (const auto& [what, words] :
       {std::pair(Written::kState, "wrote 1 of 6 elements of state of tensor \"total\" while it was called"),
        std::pair(Written::kScratch, "wrote 1 of 64 elements of scratch while it was called"),
        std::pair(Written::kInput, "wrote 1 of 6 elements of input of tensor \"x\" while it was called")}) {
    written = what;
    ForEachCreate(create, [words = words](const absl::Status& status) {
      EXPECT_THAT(status,
                  StatusIs(kPrecondition, AllOf(HasSubstr("forward of call \"count\" on rank "), HasSubstr(words))));
    });
  }
  written = Written::kAndFails;
  ForEachCreate(create, [](const absl::Status& status) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, HasSubstr("forward of call \"count\" on rank ")));
  });
}

// ---- warm-up's values ----

TYPED_TEST(CheckCallsTest, InputsThatAreChangedInPlace) {
  Residual<TypeParam> r;
  const ComputeFunction good = r.compute[r.make_call].forward;
  for (float (*const change)(float) : {+[](float v) { return std::tanh(16 * v); }, +[](float v) { return 2 * v; },
                                       +[](float v) { return std::max(v, 0.0f); }, +[](float v) { return -v; }}) {
    r.compute[r.make_call].forward = [&, change](ComputeContext& c) {
      REPRISE_RETURN_IF_ERROR(good(c));
      return r.Enqueue(c, [x = c.input<TypeParam>(r.x), change] {
        TypeParam* const data = const_cast<TypeParam*>(x.data);
        for (int64_t i = 0; i < kSize; ++i) data[i] = TypeParam(change(float(data[i])));
      });
    };
    EXPECT_THAT(r.Create(), StatusIs(kPrecondition, HasSubstr("forward of call \"make\" on rank 0 changed some of the "
                                                              "6 elements of input of tensor \"x\"")));
  }
}

// The gradient of y is that of the loss times the input, which is zero if inputs are.
TYPED_TEST(CheckCallsTest, ASumOfWhatInputsMakeThatIsMadeWhenTheFunctionIsCalled) {
  Residual<TypeParam> r;
  r.compute[r.branch_call].backward = [&r](ComputeContext& c) {
    const auto db = c.output_gradient<TypeParam>(r.branch);
    const auto dy = c.input_gradient<TypeParam>(r.y);
    for (int64_t i = 0; i < kSize; ++i) Residual<TypeParam>::Store(dy, i, float(db.data[i]) - 1);
    return absl::OkStatus();
  };
  r.compute[r.join_call].backward = [&r, inner = r.compute[r.join_call].backward](ComputeContext& c) {
    REPRISE_RETURN_IF_ERROR(inner(c));
    return r.Enqueue(c, [db = c.input_gradient<TypeParam>(r.branch)] { std::fill_n(db.data, kSize, TypeParam(1)); });
  };
  EXPECT_THAT(r.Create(),
              StatusIs(kPrecondition, HasSubstr("backward of call \"branch\" on rank 0 wrote 6 of 6 elements "
                                                "of input_gradient of tensor \"y\" while it was called")));
}

// ---- sums ----

// Backward of "branch" adds these terms to each element of the gradient of y, one by one.
template <class T>
absl::Status CreateWithTerms(const std::vector<float>& terms, void (*add)(T&, float)) {
  Residual<T> r;
  r.compute[r.branch_call].backward = [&r, &terms, add](ComputeContext& c) {
    return r.Enqueue(c, [&terms, add, dy = c.input_gradient<T>(r.y)] {
      for (int64_t i = 0; i < kSize; ++i) {
        for (const float term : terms) add(dy.data[i], term * static_cast<float>(i + 1));
      }
    });
  };
  return r.Create();
}
template <class T>
void Add(T& to, float term) {
  to = T(float(to) + term);
}

TEST(CheckSumsTest, TermsThatAreAddedOneByOne) {
  for (const float scale : {1e-30f, 1e-8f, 1.0f, 1e8f, 1e30f}) {
    std::vector<std::vector<float>> sums = {
        std::vector<float>(1024, 1.1f), std::vector<float>(4096, 1e-3f), {1e4f, 1, -1e4f}, {0}};
    for (const float large : {1e3f, 1e5f, 1e7f})
      sums.push_back({large, -large, 1, large, -0.7f * large, -0.3f * large});
    for (std::vector<float>& terms : sums) {
      for (float& term : terms) term *= scale;
      EXPECT_THAT(CreateWithTerms<float>(terms, Add<float>), IsOk()) << terms.size() << " of " << terms[0];
    }
  }
  EXPECT_THAT(CreateWithTerms<float>({1e10f, -1e10f, 1}, Add<float>), IsOk());
  EXPECT_THAT(CreateWithTerms<float>({1, 1e10f, -1e10f}, Add<float>), IsOk());
  EXPECT_THAT(CreateWithTerms<BFloat16>(std::vector<float>(12, 1.1f), Add<BFloat16>), IsOk());
  EXPECT_THAT(CreateWithTerms<BFloat16>({1e10f, -1e10f, 1}, Add<BFloat16>), IsOk());
}

TEST(CheckSumsTest, TermsThatAreLost) {
  EXPECT_THAT(CreateWithTerms<BFloat16>(std::vector<float>(1024, 1.1f), Add<BFloat16>),
              StatusIs(kPrecondition, AllOf(HasSubstr("backward of call \"branch\" on rank 0 did not add to "),
                                            HasSubstr("where it is lost among many or large terms, sum these apart and "
                                                      "add them once"))));
}

TYPED_TEST(CheckCallsTest, WhatIsNoSum) {
  for (const float scale : {1e-6f, 1.0f, 1e10f}) {
    for (void (*const add)(TypeParam&, float) : {
             +[](TypeParam&to, float term) { to = TypeParam(term); },
             +[](TypeParam&to, float term) { to = TypeParam(-float(to) + term); },
             +[](TypeParam&to, float term) { to = TypeParam(2 * float(to) + term); },
             +[](TypeParam&to, float term) { to = TypeParam(std::max(float(to), term)); },
             +[](TypeParam&to, float term) { to = TypeParam(float(to) == 0 ? term : float(to)); },
         }) {
      EXPECT_THAT(CreateWithTerms<TypeParam>({scale}, add),
                  StatusIs(kPrecondition, AllOf(HasSubstr("backward of call \"branch\" on rank 0 "),
                                                HasSubstr(" of input_gradient of tensor \"y\", whose mode is kAdd"))))
          << scale;
    }
  }
}

// A sum that is lacking from some call on is found by any run that makes it.
TYPED_TEST(CheckCallsTest, ASumThatOnlyTheFirstCallsMake) {
  Residual<TypeParam> r;
  const ComputeFunction good = r.compute[r.branch_call].backward;
  int calls = 0, writes = 0;
  r.compute[r.branch_call].backward = [&](ComputeContext& c) { return calls++ < writes ? good(c) : absl::OkStatus(); };
  for (writes = 1; writes <= 4; ++writes) {
    calls = 0;
    EXPECT_THAT(r.Create(), StatusIs(kPrecondition, HasSubstr("backward of call \"branch\" on rank "))) << writes;
  }
}

}  // namespace
}  // namespace reprise
