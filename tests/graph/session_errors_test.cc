// Every refusal of training sessions, and of what both kinds share, by its code and words.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/graph/forward_session.h"
#include "reprise/graph/host_world.h"
#include "reprise/graph/train_session.h"
#include "tests/graph/dot_session_test.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using testing::Dot;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::MakeDot;
using testing::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

class SessionErrorsTest : public testing::DotSessionTest {};

// ---- options ----

TEST_F(SessionErrorsTest, TrainOptionsOutOfRange) {
  const struct {
    TrainOptions options;
    const char* words;
  } cases[] = {
      {{.optimizer = AdamW{.beta1 = 1}}, "AdamW::beta1 is 1 but must be in [0, 1)"},
      {{.optimizer = AdamW{.beta2 = -0.5f}}, "AdamW::beta2 is -0.5 but must be in [0, 1)"},
      {{.optimizer = AdamW{.epsilon = 0}}, "AdamW::epsilon is 0 but must be finite and at least 1e-15"},
      {{.optimizer = AdamW{.epsilon = 1e-38f}}, "AdamW::epsilon is 1e-38 but must be finite and at least 1e-15"},
      {{.optimizer = AdamW{.weight_decay = -1}}, "AdamW::weight_decay is -1"},
      {{.optimizer = Sgd{.momentum = 2}}, "Sgd::momentum is 2"},
      {{.optimizer = Sgd{.weight_decay = std::nanf("")}}, "Sgd::weight_decay is nan"},
      {{.clip_norm = 0.0f}, "clip_norm is 0 but must be positive"},
      {{.clip_norm = std::numeric_limits<float>::infinity()}, "clip_norm is inf"},
      {{.loss_scale = 3}, "loss_scale is 3 but must be a power of two"},
      {{.loss_scale = -2}, "loss_scale is -2 but must be a power of two"},
      {{.run = {.plan = {.weight_slots = 0}}}, "weight_slots is 0"},
  };
  for (const auto& c : cases) EXPECT_THAT(Train(MakeDot(), c.options), StatusIs(kInvalid, HasSubstr(c.words)));
}

TEST_F(SessionErrorsTest, ComputeTablesThatDoNotFit) {
  Dot dot = MakeDot();
  dot.compute[dot.call].backward = nullptr;
  EXPECT_THAT(Train(dot, {}), StatusIs(kInvalid, HasSubstr("call \"dot\" has no backward function; add it")));
  dot.compute[dot.call].forward = nullptr;
  EXPECT_THAT(Train(dot, {}), StatusIs(kInvalid, HasSubstr("call \"dot\" has no forward function; add it")));
  dot.compute.clear();
  EXPECT_THAT(Train(dot, {}), StatusIs(kInvalid, HasSubstr("call \"dot\" has no forward function; add it")));
  dot = MakeDot();
  dot.compute[CallId(7)] = dot.compute[dot.call];
  EXPECT_THAT(Train(dot, {}), StatusIs(kInvalid, HasSubstr("entry for call 7, but the model's calls are 0 to 0")));
}

TEST_F(SessionErrorsTest, ExternalBuffersThatDoNotFit) {
  alignas(16) float memory[4][8] = {};
  const Dot dot = MakeDot({.size = 8, .external = true});
  const auto expect = [&](std::vector<ExternalBuffer> buffers, const char* words, PlanOptions plan = {}) {
    EXPECT_THAT(Train(dot, {.run = {.plan = plan, .external = std::move(buffers)}}),
                StatusIs(kInvalid, HasSubstr(words)));
  };
  const ExternalBuffer good0 = {0, dot.x, memory[0], 32}, good1 = {1, dot.x, memory[1], 32};
  EXPECT_THAT(Train(dot, {.run = {.external = {good0, good1}}}), IsOk());
  expect({good0}, "external tensor \"x\" has no buffer on rank 1; add one");
  expect({good0, good0, good1}, "tensor \"x\" on rank 0 is given twice");
  expect({good0, {2, dot.x, memory[1], 32}}, "on rank 2: the local ranks are 0, 1");
  expect({good0, {1, dot.x, memory[1], 31}}, "on rank 1 has 31 bytes, but the tensor needs 32");
  expect({good0, {1, dot.x, nullptr, 32}}, "on rank 1 has a null address; give 32 bytes");
  expect({good0, {1, dot.x, &memory[1][1], 32}}, "not a multiple of 16 bytes; align it");
  expect({good0, good1, {0, dot.loss, memory[2], 4}}, "external buffer 2 is for tensor 1, which is not an external");
  expect({good0, good1, {0, TensorId(9), memory[2], 4}}, "external buffer 2 is for tensor 9");
  expect({good0, good1}, "holds one microbatch, but microbatches_per_graph is 2; set it to 1",
         {.microbatches_per_graph = 2});
}

TEST_F(SessionErrorsTest, ExternalBuffersThatOverlap) {
  ModelBuilder builder;
  const TensorId a = builder.AddInput({.name = "a", .shape = {8}, .dtype = DType::kFloat32, .external = true});
  const TensorId b = builder.AddOutput({.name = "b", .shape = {8}, .dtype = DType::kFloat32, .external = true});
  const CallId call = builder.AddCall({.name = "copy", .inputs = {a}, .outputs = {b}});
  const Model model = *builder.Build();
  const ComputeTable compute = {{call, {.forward = [](ComputeContext&) { return absl::OkStatus(); }}}};
  REPRISE_ASSERT_OK_AND_ASSIGN(parameters_, ShardedParameters::Create(world_, model));
  alignas(16) float memory[4][8] = {};
  const auto create = [&](void* b_of_rank1) {
    return ForwardSession::Create(
        parameters_, {{"copy", model, compute}},
        {.check_writes = false,
         .external = {{0, a, memory[0], 32}, {0, b, memory[1], 32}, {1, a, memory[2], 32}, {1, b, b_of_rank1, 32}}});
  };
  EXPECT_THAT(create(memory[3]), IsOk());
  EXPECT_THAT(create(&memory[2][4]),
              StatusIs(kInvalid, HasSubstr("tensor \"b\" on rank 1 overlaps that of tensor \"a\" on rank 1")));
  EXPECT_THAT(create(memory[1]),
              StatusIs(kInvalid, HasSubstr("tensor \"b\" on rank 1 overlaps that of tensor \"b\" on rank 0")));
  EXPECT_THAT(create(&memory[1][4]), StatusIs(kInvalid, HasSubstr("tensor \"b\" on rank 1 overlaps that of")));
  EXPECT_THAT(create(memory[0]),
              StatusIs(kInvalid, HasSubstr("tensor \"b\" on rank 1 overlaps that of tensor \"a\" on rank 0")));
}

TEST_F(SessionErrorsTest, ExternalInputsOfSeveralRanksMayShareMemory) {
  const Dot dot = MakeDot({.size = 8, .external = true});
  alignas(16) float memory[12] = {};
  EXPECT_THAT(Train(dot, {.run = {.external = {{0, dot.x, memory, 32}, {1, dot.x, memory, 32}}}}), IsOk());
  EXPECT_THAT(Train(dot, {.run = {.external = {{0, dot.x, memory, 32}, {1, dot.x, &memory[4], 32}}}}), IsOk());
}

TEST_F(SessionErrorsTest, ExternalStateOfSeveralRanksMayNot) {
  ModelBuilder builder;
  const TensorId state = builder.AddState({.name = "state", .shape = {8}, .dtype = DType::kFloat32, .external = true});
  const TensorId y = builder.AddOutput({.name = "y", .dtype = DType::kFloat32});
  const CallId call = builder.AddCall({.name = "call", .outputs = {y}, .state = {state}});
  const Model model = *builder.Build();
  const ComputeTable compute = {{call, {.forward = [](ComputeContext&) { return absl::OkStatus(); }}}};
  REPRISE_ASSERT_OK_AND_ASSIGN(parameters_, ShardedParameters::Create(world_, model));
  alignas(16) float memory[8] = {};
  EXPECT_THAT(ForwardSession::Create(parameters_, {{"one", model, compute}},
                                     {.external = {{0, state, memory, 32}, {1, state, memory, 32}}}),
              StatusIs(kInvalid, HasSubstr("tensor \"state\" on rank 1 overlaps that of tensor \"state\" on rank 0")));
}

TEST_F(SessionErrorsTest, ExternalBuffersInTheMemoryOfParameters) {
  const Dot dot = MakeDot({.size = 8, .external = true});
  REPRISE_ASSERT_OK_AND_ASSIGN(parameters_, ShardedParameters::Create(world_, dot.model));
  alignas(16) float memory[8] = {};
  EXPECT_THAT(
      TrainSession::Create(parameters_, dot.model, dot.compute,
                           {.run = {.external = {{0, dot.x, memory, 32},
                                                 {1, dot.x, parameters_->memory(Storage::kWeights)->address(1), 32}}}}),
      StatusIs(kInvalid, HasSubstr("tensor \"x\" on rank 1 overlaps the weights memory of the session")));
}

TEST_F(SessionErrorsTest, OtherParameters) {
  REPRISE_ASSERT_OK_AND_ASSIGN(parameters_, ShardedParameters::Create(world_, MakeDot({.size = 6}).model));
  const Dot dot = MakeDot();
  EXPECT_THAT(TrainSession::Create(parameters_, dot.model, dot.compute, {}),
              StatusIs(kInvalid, HasSubstr("f32 [5] in the model but \"w\"")));
  EXPECT_THAT(TrainSession::Create(nullptr, dot.model, dot.compute, {}),
              StatusIs(kInvalid, HasSubstr("no parameters")));
  EXPECT_THAT(ForwardSession::Create(nullptr, {}, {}), StatusIs(kInvalid, HasSubstr("no parameters")));
}

TEST_F(SessionErrorsTest, MemoryThatIsNotThere) {
  world_->LimitBytes(4096);
  EXPECT_THAT(Train(MakeDot({.size = 2000}), {}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no room for ")));
}

TEST_F(SessionErrorsTest, ErrorsOfComputeFunctionsNameTheCall) {
  Dot dot = MakeDot();
  dot.compute[dot.call].forward = [&dot](ComputeContext& c) {
    c.output<float>(dot.x);
    return absl::OkStatus();
  };
  EXPECT_THAT(Train(dot, {}).status().message(), HasSubstr("\"dot\""));
  EXPECT_FALSE(Train(dot, {}).ok());
}

TEST_F(SessionErrorsTest, UnwrittenOutputsAreNamedUnlessTheCheckIsOff) {
  Dot dot = MakeDot();
  dot.compute[dot.call].forward = [](ComputeContext&) { return absl::OkStatus(); };
  EXPECT_THAT(Train(dot, {.run = {.check_writes = false}}), IsOk());
  const absl::Status status = Train(dot, {}).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), ::testing::AllOf(HasSubstr("dot"), HasSubstr("loss")));
}

TEST_F(SessionErrorsTest, WritesBehindScratchAreFound) {
  // 260 bytes, so that the last of them are not the end of an aligned block.
  ModelBuilder builder;
  const TensorId x = builder.AddInput({.name = "x", .shape = {4}, .dtype = DType::kFloat32});
  const TensorId y = builder.AddOutput({.name = "y", .shape = {4}, .dtype = DType::kFloat32});
  const CallId call = builder.AddCall({.name = "copy", .inputs = {x}, .outputs = {y}, .scratch_bytes = 260});
  const Model model = *builder.Build();
  REPRISE_ASSERT_OK_AND_ASSIGN(parameters_, ShardedParameters::Create(world_, model));
  const auto create = [&](int64_t elements, bool check_writes) {
    const ComputeTable compute = {{call, {.forward = [=](ComputeContext& c) {
                                     const auto scratch = c.scratch<float>({65});
                                     const auto to = c.output<float>(y);
                                     REPRISE_RETURN_IF_ERROR(c.status());
                                     c.stream().host_queue().Enqueue([=] {
                                       std::fill_n(scratch.data, elements, 1.0f);
                                       std::fill_n(to.data, 4, 2.0f);
                                     });
                                     return absl::OkStatus();
                                   }}}};
    return ForwardSession::Create(parameters_, {{"copy", model, compute}}, {.check_writes = check_writes}).status();
  };
  EXPECT_THAT(create(65, true), IsOk());
  EXPECT_THAT(create(66, true),
              StatusIs(kPrecondition, HasSubstr("forward of call \"copy\" on rank 0 wrote byte 260 of scratch, but the "
                                                "call declares scratch_bytes 260; raise CallSpec::scratch_bytes")));
  // Where no other scratch fits, the model is not refused for that.
  const int64_t before = world_->allocated_bytes();
  ASSERT_THAT(create(65, true), IsOk());
  const int64_t taken = world_->allocated_bytes() - before;
  world_->LimitBytes(world_->allocated_bytes() + taken - 1);
  EXPECT_THAT(create(65, true), IsOk());
  EXPECT_EQ(world_->allocated_bytes() - before, 2 * taken - (260 + 4096));
}

// ---- parameters that were never set ----

TEST_F(SessionErrorsTest, StepsAndReplaysNeedEveryParameter) {
  const Dot dot = dot_ = MakeDot({.with_others = true});
  REPRISE_ASSERT_OK_AND_ASSIGN(parameters_, ShardedParameters::Create(world_, dot.model));
  REPRISE_ASSERT_OK_AND_ASSIGN(session_, TrainSession::Create(parameters_, dot.model, dot.compute, {}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto forward,
                               ForwardSession::Create(parameters_, {{"dot", dot.model, dot.compute}}, {}));
  const auto replay = [&] {
    for (int rank = 0; rank < 2; ++rank) {
      REPRISE_RETURN_IF_ERROR(forward->CopyInput(rank, 0, dot.x, std::vector<float>(5, 1.0f)));
    }
    return forward->Replay(0);
  };
  for (const char* name : {"w", "frozen", "unused"}) {
    const std::string words =
        absl::StrCat("parameter \"", name, "\" was never set; call ShardedParameters::Initialize or Write");
    EXPECT_THAT(session_->BeginStep({.learning_rate = 0}), StatusIs(kPrecondition, absl::StrCat("BeginStep: ", words)));
    EXPECT_THAT(replay(), StatusIs(kPrecondition, absl::StrCat("Replay of variant \"dot\": ", words)));
    const ParameterId id = *dot.model.FindParameter(name);
    const std::vector<float> values(static_cast<size_t>(NumElements(dot.model.parameter(id).spec.shape)), 1.0f);
    ASSERT_THAT(parameters_->Write(name, values), IsOk());
  }
  EXPECT_THAT(replay(), IsOk());
  ExpectStepWorks();
}

TEST_F(SessionErrorsTest, MarkParametersChangedSetsNone) {
  dot_ = MakeDot();
  REPRISE_ASSERT_OK_AND_ASSIGN(parameters_, ShardedParameters::Create(world_, dot_.model));
  REPRISE_ASSERT_OK_AND_ASSIGN(session_, TrainSession::Create(parameters_, dot_.model, dot_.compute, {}));
  ASSERT_THAT(session_->MarkParametersChanged(), IsOk());
  EXPECT_THAT(session_->BeginStep({.learning_rate = 0}),
              StatusIs(kPrecondition, HasSubstr("parameter \"w\" was never set")));
  ASSERT_THAT(parameters_->Initialize(Constant(1)), IsOk());
  ExpectStepWorks();
}

// ---- order of calls ----

TEST_F(SessionErrorsTest, CallsOutsideAStep) {
  Start();
  EXPECT_THAT(session_->RunMicrobatch(),
              StatusIs(kPrecondition, "RunMicrobatch: no step is open; call BeginStep first"));
  EXPECT_THAT(session_->EndStep(), StatusIs(kPrecondition, "EndStep: no step is open; call BeginStep first"));
  EXPECT_THAT(Copy(0), StatusIs(kPrecondition, "CopyInput: no step is open; call BeginStep first"));
  EXPECT_THAT(session_->ReadGradient("w"),
              StatusIs(kPrecondition, "ReadGradient: no step is open; call BeginStep first"));
  EXPECT_THAT(session_->DiscardGradients(), StatusIs(kPrecondition, HasSubstr("DiscardGradients: no step is open")));
  ExpectStepWorks();
  EXPECT_THAT(session_->RunMicrobatch(), StatusIs(kPrecondition, HasSubstr("no step is open")));
}

TEST_F(SessionErrorsTest, CallsWithinAStep) {
  Start();
  ExpectStepWorks();
  ASSERT_THAT(session_->BeginStep({.learning_rate = 0, .microbatches = 2}), IsOk());
  RunMicrobatch();
  EXPECT_THAT(session_->BeginStep({.learning_rate = 0}), StatusIs(kPrecondition,
                                                                  "BeginStep: 1 of 2 microbatches of step 1 have run; "
                                                                  "call EndStep or DiscardGradients first"));
  EXPECT_THAT(session_->MarkParametersChanged(),
              StatusIs(kPrecondition, HasSubstr("MarkParametersChanged: 1 of 2 microbatches of step 1 have run")));
  EXPECT_THAT(session_->EndStep(), StatusIs(kPrecondition, HasSubstr("EndStep: 1 of 2 microbatches of step 1 have run; "
                                                                     "call RunMicrobatch for the rest")));
  EXPECT_THAT(
      session_->ReadGradient("w"),
      StatusIs(kPrecondition, HasSubstr("ReadGradient: 1 of 2 microbatches of step 1 have run; call RunMicro")));
  RunMicrobatch();
  EXPECT_THAT(session_->RunMicrobatch(),
              StatusIs(kPrecondition, "RunMicrobatch: 2 of 2 microbatches of step 1 have run; call EndStep"));
  EXPECT_THAT(Copy(0), StatusIs(kPrecondition, "CopyInput: 2 of 2 microbatches of step 1 have run; call EndStep"));
  EXPECT_THAT(session_->EndStep(), IsOk());
  ExpectStepWorks();
}

TEST_F(SessionErrorsTest, MissingInputs) {
  Start();
  ASSERT_THAT(session_->BeginStep({.learning_rate = 0, .microbatches = 2}), IsOk());
  EXPECT_THAT(session_->RunMicrobatch(), StatusIs(kPrecondition,
                                                  "RunMicrobatch: microbatch 0 of step 0 lacks input \"x\" of rank 0; "
                                                  "call CopyInput for it first"));
  ASSERT_THAT(Copy(0), IsOk());
  EXPECT_THAT(session_->RunMicrobatch(), StatusIs(kPrecondition, HasSubstr("lacks input \"x\" of rank 1")));
  ASSERT_THAT(Copy(1), IsOk());
  ASSERT_THAT(session_->RunMicrobatch(), IsOk());
  EXPECT_THAT(session_->RunMicrobatch(), StatusIs(kPrecondition, HasSubstr("microbatch 1 of step 0 lacks input")))
      << "inputs of the microbatch before do not count";
  ASSERT_THAT(Copy(0), IsOk());
  ASSERT_THAT(session_->DiscardGradients(), IsOk());
  ASSERT_THAT(session_->BeginStep({.learning_rate = 0}), IsOk());
  ASSERT_THAT(Copy(1), IsOk());
  EXPECT_THAT(session_->RunMicrobatch(), StatusIs(kPrecondition, HasSubstr("lacks input \"x\" of rank 0")))
      << "inputs of a discarded step do not count";
}

TEST_F(SessionErrorsTest, InputsThatDoNotFit) {
  Start();
  ASSERT_THAT(session_->BeginStep({.learning_rate = 0}), IsOk());
  const std::vector<float> five(5);
  EXPECT_THAT(Copy(2), StatusIs(kInvalid, "CopyInput: rank 2 is not driven by this process; its ranks are 0, 1"));
  EXPECT_THAT(Copy(0, 4), StatusIs(kInvalid, HasSubstr("CopyInput: 4 values for input \"x\", which has 5 elements")));
  EXPECT_THAT(session_->CopyInput(0, dot_.x, absl::Span<const float>(nullptr, 5)),
              StatusIs(kInvalid, HasSubstr("CopyInput: the values for input \"x\" are at a null address")));
  EXPECT_THAT(session_->CopyInput(0, dot_.x, std::vector<int32_t>(5)),
              StatusIs(kInvalid, HasSubstr("CopyInput: tensor \"x\" is f32, not i32")));
  EXPECT_THAT(session_->CopyInput(0, dot_.loss, five),
              StatusIs(kInvalid, HasSubstr("CopyInput: tensor \"loss\" is not an input")));
  EXPECT_THAT(session_->CopyInput(0, TensorId(9), five),
              StatusIs(kInvalid, HasSubstr("CopyInput: no tensor 9 among the model's 2")));
  EXPECT_THAT(session_->CopyInput(0, TensorId(), five), StatusIs(kInvalid, HasSubstr("no tensor -1")));
}

TEST_F(SessionErrorsTest, ExternalInputsAreNotCopied) {
  alignas(16) float memory[2][8] = {};
  dot_ = MakeDot({.size = 8, .external = true});
  absl::StatusOr<std::unique_ptr<TrainSession>> session =
      Train(dot_, {.run = {.external = {{0, dot_.x, memory[0], 32}, {1, dot_.x, memory[1], 32}}}});
  ASSERT_THAT(session, IsOk());
  session_ = *std::move(session);
  ASSERT_THAT(session_->BeginStep({.learning_rate = 0}), IsOk());
  EXPECT_THAT(Copy(0, 8), StatusIs(kInvalid, HasSubstr("tensor \"x\" is external; write to its own memory")));
}

TEST_F(SessionErrorsTest, StepValuesOutOfRange) {
  Start({.run = {.plan = {.microbatches_per_graph = 2}}, .loss_scale = 0x1p100f});
  const struct {
    StepValues values;
    const char* words;
  } cases[] = {
      {{}, "BeginStep: learning_rate is not set; set it in StepValues, to 0 for a step that changes no parameter"},
      {{.microbatches = 2}, "BeginStep: learning_rate is not set"},
      {{.learning_rate = -1, .microbatches = 2}, "BeginStep: learning_rate is -1"},
      {{.learning_rate = std::nanf(""), .microbatches = 2}, "BeginStep: learning_rate is nan"},
      {{.learning_rate = 0, .microbatches = 0}, "microbatches is 0 but must be a positive multiple of 2"},
      {{.learning_rate = 0, .microbatches = -2}, "microbatches is -2 but"},
      {{.learning_rate = 0, .microbatches = 3}, "microbatches is 3 but must be a positive multiple of 2"},
      {{.learning_rate = 0, .microbatches = 2, .gradient_divisor = -1}, "gradient_divisor is -1"},
      {{.learning_rate = 0, .microbatches = 2, .gradient_divisor = INFINITY}, "gradient_divisor is inf"},
      {{.learning_rate = 0, .microbatches = 2, .gradient_divisor = 1e-300}, "outside the range of fp32"},
      {{.learning_rate = 0, .microbatches = 2, .gradient_divisor = 1e9},
       "gradient_divisor 1e+09 times loss_scale 1.26765e+30 is outside"},
  };
  for (const auto& c : cases) EXPECT_THAT(session_->BeginStep(c.values), StatusIs(kInvalid, HasSubstr(c.words)));
  EXPECT_THAT(session_->BeginStep({.learning_rate = 0, .microbatches = 2}), IsOk());
}

TEST_F(SessionErrorsTest, AMeanOutsideFp32IsNamed) {
  Start({.loss_scale = 0x1p127f});
  EXPECT_THAT(session_->BeginStep({.learning_rate = 0, .microbatches = 2}),
              StatusIs(kInvalid, HasSubstr("gradient_divisor 4, the mean, times loss_scale 1.70141e+38 is outside")));
  EXPECT_THAT(session_->BeginStep({.learning_rate = 0, .gradient_divisor = 1}), IsOk());
}

TEST_F(SessionErrorsTest, ParametersChangedWithinAStep) {
  Start();
  ASSERT_THAT(session_->BeginStep({.learning_rate = 0, .microbatches = 2}), IsOk());
  RunMicrobatch();
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<TrainSession> other,
                               TrainSession::Create(parameters_, dot_.model, dot_.compute, {}));
  ASSERT_THAT(other->MarkParametersChanged(), IsOk());
  EXPECT_THAT(session_->RunMicrobatch(),
              StatusIs(kPrecondition, HasSubstr("RunMicrobatch: parameters were changed during step 0 (version 2, the "
                                                "step began with 1)")));
  EXPECT_THAT(Copy(0), StatusIs(kPrecondition, HasSubstr("call DiscardGradients")));
  EXPECT_THAT(session_->EndStep(), StatusIs(kPrecondition, HasSubstr("EndStep: parameters were changed")));
  EXPECT_THAT(session_->ReadGradient("w"), StatusIs(kPrecondition, HasSubstr("ReadGradient: parameters were changed")));
  EXPECT_THAT(session_->DiscardGradients(), IsOk());
  ExpectStepWorks();
}

TEST_F(SessionErrorsTest, ParametersAreNotSetInAStep) {
  Start();
  REPRISE_ASSERT_OK_AND_ASSIGN(std::unique_ptr<TrainSession> other,
                               TrainSession::Create(parameters_, dot_.model, dot_.compute, {}));
  const auto write = [&] { return parameters_->Write("w", std::vector<float>(5, 2)); };
  const auto initialize = [&] { return parameters_->Initialize(Constant(2)); };
  // Whichever session's.
  for (std::unique_ptr<TrainSession>* const in_step : {&session_, &other}) {
    std::swap(*in_step, session_);
    ExpectStepWorks();
    const int64_t version = parameters_->version();
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> before, parameters_->Read("w"));
    ASSERT_THAT(session_->BeginStep({.learning_rate = 0}), IsOk());
    const std::string words =
        "step 1 of a session on these parameters is open; call its EndStep or DiscardGradients first";
    EXPECT_THAT(write(), StatusIs(kPrecondition, absl::StrCat("Write of parameter \"w\": ", words)));
    EXPECT_THAT(initialize(), StatusIs(kPrecondition, absl::StrCat("Initialize: ", words)));
    RunMicrobatch();
    EXPECT_THAT(write(), StatusIs(kPrecondition, HasSubstr(words)));
    EXPECT_EQ(parameters_->version(), version);
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> after, parameters_->Read("w"));
    EXPECT_EQ(after, before);
    EXPECT_THAT(session_->EndStep(), IsOk()) << "the step goes on";
    EXPECT_THAT(write(), IsOk());
    EXPECT_THAT(initialize(), IsOk());
    std::swap(*in_step, session_);
  }
  ASSERT_THAT(session_->BeginStep({.learning_rate = 0}), IsOk());
  ASSERT_THAT(session_->DiscardGradients(), IsOk());
  EXPECT_THAT(write(), IsOk());
  ASSERT_THAT(other->BeginStep({.learning_rate = 0}), IsOk());
  EXPECT_THAT(write(), StatusIs(kPrecondition, HasSubstr("step 2 of a session")));
  other.reset();
  EXPECT_THAT(write(), IsOk()) << "nobody can end that step";
}

// ---- reading ----

TEST_F(SessionErrorsTest, ReadsThatCannotBe) {
  Start({}, {.with_others = true});
  EXPECT_THAT(
      session_->ReadOutput<float>(0, dot_.loss),
      StatusIs(kPrecondition, HasSubstr("ReadOutput: tensor \"loss\" has no value yet; call RunMicrobatch first")));
  ASSERT_THAT(session_->BeginStep({.learning_rate = 0}), IsOk());
  RunMicrobatch();
  EXPECT_THAT(session_->ReadOutput<float>(5, dot_.loss), StatusIs(kInvalid, HasSubstr("ReadOutput: rank 5 is not")));
  EXPECT_THAT(session_->ReadOutput<BFloat16>(0, dot_.loss),
              StatusIs(kInvalid, HasSubstr("ReadOutput: tensor \"loss\" is f32, not bf16")));
  EXPECT_THAT(session_->ReadOutput<float>(0, dot_.x),
              StatusIs(kInvalid, HasSubstr("ReadOutput: tensor \"x\" is neither output nor state")));
  EXPECT_THAT(session_->ReadOutput<float>(0, TensorId(4)), StatusIs(kInvalid, HasSubstr("ReadOutput: no tensor 4")));
  EXPECT_THAT(session_->ReadInputGradient<float>(0, dot_.x),
              StatusIs(kInvalid, HasSubstr("ReadInputGradient: the gradient of tensor \"x\" is not kept")));
  EXPECT_THAT(session_->ReadGradient("v"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no parameter \"v\"")));
  EXPECT_THAT(session_->ReadGradient("frozen"),
              StatusIs(kInvalid, HasSubstr("ReadGradient: parameter \"frozen\" is frozen")));
  EXPECT_THAT(session_->EndStep(), IsOk());
}

TEST_F(SessionErrorsTest, ReadsBeforeAGraphIsComplete) {
  Start({.run = {.plan = {.microbatches_per_graph = 2}}});
  ASSERT_THAT(session_->BeginStep({.learning_rate = 0, .microbatches = 2}), IsOk());
  RunMicrobatch();
  EXPECT_THAT(session_->ReadOutput<float>(0, dot_.loss),
              StatusIs(kPrecondition, HasSubstr("has no value yet; call RunMicrobatch for the 2 microbatches of a "
                                                "graph first")));
  RunMicrobatch();
  EXPECT_THAT(session_->ReadOutput<float>(0, dot_.loss), IsOk());
}

}  // namespace
}  // namespace reprise
