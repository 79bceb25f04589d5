// Every refusal of forward sessions, by its code and words.
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

using testing::BreakableWorld;
using testing::Dot;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::MakeDot;
using testing::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

class ForwardErrorsTest : public testing::DotSessionTest {};

TEST_F(ForwardErrorsTest, VariantsThatDoNotFit) {
  Start();
  EXPECT_THAT(Forward(dot_, {}), StatusIs(kInvalid, HasSubstr("no variants; give at least one")));
  EXPECT_THAT(Forward(dot_, {"a", "a"}), StatusIs(kInvalid, HasSubstr("variant name \"a\" is used twice")));
  EXPECT_THAT(Forward(dot_, {""}), StatusIs(kInvalid, HasSubstr("is empty")));
  EXPECT_THAT(Forward(MakeDot({.size = 6}), {"a"}), StatusIs(kInvalid, HasSubstr("f32 [6] in the model")));
  EXPECT_THAT(Forward(dot_, {"a"}, {.plan = {.microbatches_per_graph = 2}}),
              StatusIs(kInvalid, HasSubstr("one microbatch at a time, but microbatches_per_graph is 2")));
  EXPECT_THAT(Forward(dot_, {"a"}, {.external = {{0, dot_.x, nullptr, 20}}}),
              StatusIs(kInvalid, HasSubstr("external buffer 0 is for tensor 0, which is not an external tensor")));
  Dot dot = dot_;
  dot.compute[dot.call].backward = nullptr;
  EXPECT_THAT(Forward(dot, {"a"}), IsOk()) << "backward is not needed";
  dot.compute.clear();
  EXPECT_THAT(Forward(dot, {"a"}), StatusIs(kInvalid, HasSubstr("call \"dot\" has no forward function")));
}

TEST_F(ForwardErrorsTest, CallsThatDoNotFit) {
  Start();
  StartForward();
  EXPECT_THAT(forward_->Replay(2), StatusIs(kInvalid, "Replay: no variant 2; the session has 2, counted from 0"));
  EXPECT_THAT(forward_->Replay(-1), StatusIs(kInvalid, HasSubstr("no variant -1")));
  EXPECT_THAT(CopyForward(0, 3), StatusIs(kInvalid, HasSubstr("CopyInput: no variant 3")));
  EXPECT_THAT(forward_->plan(2), StatusIs(kInvalid, "plan: no variant 2; the session has 2, counted from 0"));
  EXPECT_THAT(forward_->plan(-1), StatusIs(kInvalid, HasSubstr("plan: no variant -1")));
  EXPECT_THAT(forward_->plan(1), IsOk());
  EXPECT_THAT(forward_->ClearState(3), StatusIs(kInvalid, HasSubstr("ClearState: no variant 3")));
  EXPECT_THAT(forward_->Address(0, 3, dot_.loss), StatusIs(kInvalid, HasSubstr("Address: no variant 3")));
  EXPECT_THAT(forward_->Address(0, 0, dot_.x), StatusIs(kInvalid, HasSubstr("Address: tensor \"x\" is neither")));
  EXPECT_THAT(forward_->Address(3, 0, dot_.loss), StatusIs(kInvalid, HasSubstr("Address: rank 3")));
  EXPECT_THAT(forward_->ReadOutput<float>(0, 3, dot_.loss), StatusIs(kInvalid, HasSubstr("ReadOutput: no variant 3")));
  EXPECT_THAT(forward_->ReadOutput<float>(0, 0, dot_.loss),
              StatusIs(kPrecondition, HasSubstr("has no value yet; call Replay first")));
  ASSERT_THAT(CopyForward(0), IsOk());
  ASSERT_THAT(CopyForward(1, 1), IsOk()) << "of the other variant";
  EXPECT_THAT(forward_->Replay(0), StatusIs(kPrecondition,
                                            "Replay of variant \"one\" lacks input \"x\" of rank 1; "
                                            "call CopyInput for it first"));
  ASSERT_THAT(CopyForward(1), IsOk());
  EXPECT_THAT(forward_->Replay(0), IsOk());
}

TEST_F(ForwardErrorsTest, ASharedArenaBelongsToTheOpenStep) {
  Start();
  StartForward(session_.get());
  ASSERT_THAT(CopyForward(0), IsOk());
  ASSERT_THAT(CopyForward(1), IsOk());
  ExpectStepWorks();
  ASSERT_THAT(session_->BeginStep({.learning_rate = 0}), IsOk());
  EXPECT_THAT(forward_->Replay(0),
              StatusIs(kPrecondition,
                       "Replay of variant \"one\": the training session whose arena is shared is in step "
                       "1; call EndStep or DiscardGradients first"));
  EXPECT_THAT(Forward(dot_, {"a"}, {}, session_.get()),
              StatusIs(kPrecondition, HasSubstr("arena is shared is in step 1; call EndStep")));
  ASSERT_THAT(session_->DiscardGradients(), IsOk());
  EXPECT_THAT(forward_->Replay(0), IsOk());
}

TEST_F(ForwardErrorsTest, ASharedArenaMustBeLargeEnough) {
  Start();
  // The same parameters, but a large activation.
  ModelBuilder builder;
  builder.AddParameter(builder.AddUnit("unit"), {.name = "w", .shape = {5}, .dtype = DType::kFloat32});
  const TensorId big = builder.AddActivation({.name = "big", .shape = {100000}, .dtype = DType::kFloat32});
  const TensorId out = builder.AddOutput({.name = "out", .dtype = DType::kFloat32});
  Dot dot;
  const ComputeFunction nothing = [](ComputeContext&) { return absl::OkStatus(); };
  dot.compute[builder.AddCall({.name = "make", .outputs = {big}})].forward = nothing;
  dot.compute[builder.AddCall({.name = "use", .inputs = {big}, .outputs = {out}})].forward = nothing;
  dot.model = *builder.Build();
  const int64_t room = session_->plan().memory.num_bytes[static_cast<int>(Storage::kLocal)];
  EXPECT_THAT(
      Forward(dot, {"a"}, {}, session_.get()),
      StatusIs(absl::StatusCode::kResourceExhausted,
               ::testing::AllOf(HasSubstr(absl::StrCat(" local arena has ", room, " bytes")),
                                HasSubstr("but variant \"a\" needs 400"), HasSubstr("smaller activations"),
                                HasSubstr("leave share_arena null"), ::testing::Not(HasSubstr("weight_slots")))));
  EXPECT_THAT(Forward(dot, {"a"}, {.check_writes = false}), IsOk());
  ExpectStepWorks();
}

TEST_F(ForwardErrorsTest, ASharedArenaIsOfTheSameWorld) {
  Start();
  const std::unique_ptr<TrainSession> train = std::move(session_);
  world_ = std::make_shared<BreakableWorld>(2);
  Start();
  EXPECT_THAT(Forward(dot_, {"a"}, {}, train.get()), StatusIs(kInvalid, HasSubstr("belongs to another World")));
}

}  // namespace
}  // namespace reprise
