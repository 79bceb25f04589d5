#include "reprise/core/compute.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using reprise::testing::IsOk;
using reprise::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Call "c" names unit "u" (parameter w), forward-only unit "e" (parameter table) and, alone, the frozen bias of unit
// "t" (which also has gain); it reads x and labels, writes y and z, keeps a private mask and updates a cache.
class ComputeContextTest : public ::testing::Test {
 protected:
  ComputeContextTest() {
    ModelBuilder builder;
    const UnitId u = builder.AddUnit("u"), e = builder.AddUnit("e"), t = builder.AddUnit("t");
    w_ = builder.AddParameter(u, {.name = "w", .shape = {2, 3}});
    table_ = builder.AddParameter(e, {.name = "table", .shape = {5}, .dtype = DType::kFloat32});
    bias_ = builder.AddParameter(t, {.name = "bias", .shape = {7}, .trainable = false});
    gain_ = builder.AddParameter(t, {.name = "gain", .shape = {7}, .trainable = false});
    x_ = builder.AddInput({.name = "x", .shape = {4}, .dtype = DType::kFloat32});
    labels_ = builder.AddInput({.name = "labels", .shape = {4}, .dtype = DType::kInt32});
    y_ = builder.AddActivation({.name = "y", .shape = {2, 2}});
    z_ = builder.AddOutput({.name = "z", .shape = {2}});
    mask_ = builder.AddActivation({.name = "mask", .shape = {9}, .dtype = DType::kUInt8});
    cache_ = builder.AddState({.name = "cache", .shape = {8}, .dtype = DType::kFloat32});
    other_ = builder.AddOutput({.name = "other", .shape = {1}, .dtype = DType::kFloat32});
    call_ = builder.AddCall({.name = "c",
                             .units = {u},
                             .parameters = {bias_},
                             .inputs = {x_, labels_},
                             .outputs = {y_, z_},
                             .saved = {x_, y_, mask_},
                             .state = {cache_},
                             .forward_only_units = {e},
                             .scratch_bytes = 1000});
    without_scratch_ = builder.AddCall({.name = "d", .inputs = {y_}, .outputs = {other_}});
    model_ = *builder.Build();
  }

  ComputeContext Forward() {
    return Context(Phase::kForward, {{Role::kParameter, w_.value(), DType::kBFloat16, WriteMode::kAssign, w_data_},
                                     {Role::kParameter, table_.value(), DType::kFloat32, WriteMode::kAssign, f32_},
                                     {Role::kParameter, bias_.value(), DType::kBFloat16, WriteMode::kAssign, w_data_},
                                     {Role::kInput, x_.value(), DType::kFloat32, WriteMode::kAssign, f32_},
                                     {Role::kInput, labels_.value(), DType::kInt32, WriteMode::kAssign, i32_},
                                     {Role::kOutput, y_.value(), DType::kBFloat16, WriteMode::kAssign, y_data_},
                                     {Role::kOutput, z_.value(), DType::kBFloat16, WriteMode::kAssign, y_data_},
                                     {Role::kSaved, mask_.value(), DType::kUInt8, WriteMode::kAssign, u8_},
                                     {Role::kState, cache_.value(), DType::kFloat32, WriteMode::kAssign, f32_}});
  }

  // No gradient flows into z, and nobody needs that of x.
  ComputeContext Backward() {
    return Context(Phase::kBackward,
                   {{Role::kParameter, w_.value(), DType::kBFloat16, WriteMode::kAssign, w_data_},
                    {Role::kSaved, x_.value(), DType::kFloat32, WriteMode::kAssign, f32_},
                    {Role::kSaved, y_.value(), DType::kBFloat16, WriteMode::kAssign, y_data_},
                    {Role::kSaved, mask_.value(), DType::kUInt8, WriteMode::kAssign, u8_},
                    {Role::kState, cache_.value(), DType::kFloat32, WriteMode::kAssign, f32_},
                    {Role::kOutputGradient, y_.value(), DType::kBFloat16, WriteMode::kAssign, y_data_},
                    {Role::kParameterGradient, w_.value(), DType::kFloat32, WriteMode::kAdd, f32_}});
  }

  ComputeContext Context(Phase phase, std::vector<ComputeContext::Operand> operands) {
    return ComputeContext(model_, call_, phase, /*rank=*/1, /*world_size=*/3, /*position=*/2, Stream(&queue_),
                          &control_, scratch_, std::move(operands));
  }

  static ::testing::Matcher<absl::Status> Refused(const std::string& start, const std::string& why) {
    return StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr(start), HasSubstr(why)));
  }

  Model model_;
  ParameterId w_, table_, bias_, gain_;
  TensorId x_, labels_, y_, z_, mask_, cache_, other_;
  CallId call_, without_scratch_;
  ImmediateHostQueue queue_;
  ControlBlock control_;
  alignas(256) std::byte scratch_[1000] = {};
  BFloat16 w_data_[6], y_data_[4];
  float f32_[8] = {};
  int32_t i32_[4] = {};
  uint8_t u8_[9] = {};
};

TEST_F(ComputeContextTest, ForwardSeesWhatTheCallDeclared) {
  ComputeContext c = Forward();
  EXPECT_EQ(c.parameter<BFloat16>(w_).data, w_data_);
  EXPECT_THAT(c.parameter<BFloat16>(w_).shape, ElementsAre(2, 3));
  EXPECT_EQ(c.parameter<BFloat16>(w_).num_elements(), 6);
  EXPECT_EQ(c.parameter<float>(table_).data, f32_);
  EXPECT_EQ(c.parameter<BFloat16>(bias_).data, w_data_);
  EXPECT_EQ(c.input<float>(x_).data, f32_);
  EXPECT_EQ(c.input<int32_t>(labels_).data, i32_);
  EXPECT_EQ(c.output<BFloat16>(y_).data, y_data_);
  EXPECT_THAT(c.output<BFloat16>(z_).shape, ElementsAre(2));
  EXPECT_EQ(c.saved<uint8_t>(mask_).data, u8_);
  EXPECT_EQ(c.state<float>(cache_).data, f32_);
  EXPECT_THAT(c.status(), IsOk());
}

TEST_F(ComputeContextTest, BackwardSeesWhatTheCallDeclared) {
  ComputeContext c = Backward();
  EXPECT_EQ(c.parameter<BFloat16>(w_).data, w_data_);
  EXPECT_EQ(c.saved<const float>(x_).data, f32_);
  EXPECT_EQ(c.saved<const BFloat16>(y_).data, y_data_);
  EXPECT_EQ(c.saved<const uint8_t>(mask_).data, u8_);
  EXPECT_EQ(c.state<float>(cache_).data, f32_);
  EXPECT_EQ(c.output_gradient<BFloat16>(y_).data, y_data_);
  const Gradient<float> gradient = c.parameter_gradient<float>(w_);
  EXPECT_TRUE(gradient);
  EXPECT_EQ(gradient.data, f32_);
  EXPECT_EQ(gradient.mode, WriteMode::kAdd);
  EXPECT_THAT(gradient.shape, ElementsAre(2, 3));
  EXPECT_THAT(c.status(), IsOk());
}

TEST_F(ComputeContextTest, CarriesRankPositionScratchAndControl) {
  ComputeContext c = Forward();
  EXPECT_EQ(c.rank(), 1);
  EXPECT_EQ(c.world_size(), 3);
  EXPECT_EQ(c.position(), 2);
  EXPECT_EQ(c.scratch(), scratch_);
  EXPECT_EQ(c.control(), &control_);
  EXPECT_EQ(&c.stream().host_queue(), &queue_);
}

TEST_F(ComputeContextTest, ScratchTensorsLieBesideEachOther) {
  ComputeContext c = Forward();
  const TensorView<float> first = c.scratch<float>({2, 3});
  EXPECT_EQ(static_cast<void*>(first.data), scratch_);
  EXPECT_THAT(first.shape, ElementsAre(2, 3));
  EXPECT_EQ(first.num_elements(), 6);
  const Shape shape = {100};
  const TensorView<BFloat16> second = c.scratch<BFloat16>(shape);
  EXPECT_EQ(static_cast<void*>(second.data), scratch_ + 256);
  EXPECT_NE(second.shape.data(), shape.data()) << "the shape must outlive the function";
  EXPECT_EQ(c.scratch<float>({0, 7}).num_elements(), 0);
  const TensorView<float> third = c.scratch<float>({122});
  EXPECT_EQ(static_cast<void*>(third.data), scratch_ + 512) << "its 488 bytes are all that is left";
  EXPECT_THAT(c.status(), IsOk());
  EXPECT_EQ(c.scratch<uint8_t>({1}).data, nullptr);
  EXPECT_THAT(c.status(),
              Refused("forward of call \"c\" asked for scratch of u8 [1]",
                      "declares scratch_bytes 1000, of which 1000 are taken; raise CallSpec::scratch_bytes"));
}

TEST_F(ComputeContextTest, ScratchBeyondWhatTheCallDeclaresIsRefused) {
  const auto refuse = [](ComputeContext c, absl::Span<const int64_t> shape, const std::string& why) {
    const TensorView<float> view = c.scratch<float>(shape);
    EXPECT_EQ(view.data, nullptr) << why;
    EXPECT_EQ(view.num_elements(), 0) << why;
    EXPECT_THAT(c.status(), Refused("asked for scratch of f32 [", why));
  };
  refuse(Forward(), {251}, "[251], but the call declares scratch_bytes 1000, of which 0 are taken; raise");
  refuse(Forward(), {int64_t{1} << 40, int64_t{1} << 40}, "but the call declares scratch_bytes 1000");
  refuse(Forward(), {-1}, "which has a negative extent");
  EXPECT_EQ(Forward().scratch<float>({250}).num_elements(), 250);

  const auto without = [this] {
    return ComputeContext(model_, without_scratch_, Phase::kBackward, 0, 1, 0, Stream(&queue_), &control_,
                          /*scratch=*/nullptr, {});
  };
  ComputeContext c = without();
  EXPECT_EQ(c.scratch(), nullptr);
  EXPECT_THAT(c.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                   "backward of call \"d\" asked for scratch, but the call declares scratch_bytes 0; "
                                   "set CallSpec::scratch_bytes"));
  ComputeContext typed = without();
  EXPECT_EQ(typed.scratch<float>({}).data, nullptr);
  EXPECT_THAT(typed.status(), Refused("\"d\" asked for scratch", "declares scratch_bytes 0; set"));
  ComputeContext empty = without();
  EXPECT_EQ(empty.scratch<float>({0}).num_elements(), 0);
  EXPECT_THAT(empty.status(), IsOk()) << "nothing is needed";
}

TEST_F(ComputeContextTest, GradientsThatNobodyNeedsAreEmptyWithoutAnError) {
  ComputeContext c = Backward();
  EXPECT_FALSE(c.input_gradient<float>(x_));
  EXPECT_FALSE(c.parameter_gradient<BFloat16>(bias_));
  EXPECT_FALSE(c.parameter_gradient<float>(table_));
  EXPECT_THAT(c.status(), IsOk());
}

TEST_F(ComputeContextTest, GradientDTypeIsTheOneBackwardMustWrite) {
  EXPECT_EQ(Backward().parameter_gradient_dtype(w_), DType::kFloat32);
  EXPECT_EQ(Backward().parameter_gradient_dtype(bias_), DType::kFloat32);
  ComputeContext c = Context(Phase::kBackward, {{Role::kParameterGradient, w_.value(), DType::kBFloat16}});
  EXPECT_EQ(c.parameter_gradient_dtype(w_), DType::kBFloat16);
}

TEST_F(ComputeContextTest, RefusedRequestsAreNamedAndGiveEmptyViews) {
  const auto expect = [](ComputeContext c, auto ask, const std::string& request, const std::string& why) {
    const auto view = ask(c);
    EXPECT_EQ(view.data, nullptr) << request;
    EXPECT_EQ(view.num_elements(), 0) << request;
    EXPECT_THAT(c.status(), Refused(request, why));
  };
  using C = ComputeContext;
  // Another dtype.
  expect(
      Forward(), [&](C& c) { return c.input<BFloat16>(x_); },
      "forward of call \"c\" asked for what it may not touch: input of \"x\" as bf16", "it is f32");
  expect(
      Backward(), [&](C& c) { return c.parameter_gradient<BFloat16>(w_); },
      "backward of call \"c\" asked for what it may not touch: parameter_gradient of \"w\" as bf16", "it is f32");
  // Not declared.
  expect(
      Forward(), [&](C& c) { return c.parameter<BFloat16>(gain_); }, "parameter of \"gain\"",
      "names neither it nor its unit \"t\"");
  expect(
      Backward(), [&](C& c) { return c.parameter_gradient<BFloat16>(gain_); }, "parameter_gradient of \"gain\"",
      "names neither it nor its unit \"t\"");
  expect(
      Forward(), [&](C& c) { return c.input<BFloat16>(y_); }, "input of \"y\"", "not in the call's inputs");
  expect(
      Forward(), [&](C& c) { return c.output<float>(other_); }, "output of \"other\"", "not in the call's outputs");
  expect(
      Forward(), [&](C& c) { return c.state<float>(x_); }, "state of \"x\"", "not in the call's state");
  expect(
      Backward(), [&](C& c) { return c.saved<const BFloat16>(z_); }, "saved of \"z\"", "not in the call's saved");
  expect(
      Backward(), [&](C& c) { return c.input_gradient<BFloat16>(y_); }, "input_gradient of \"y\"",
      "not in the call's inputs");
  expect(
      Backward(), [&](C& c) { return c.output_gradient<float>(other_); }, "output_gradient of \"other\"",
      "not in the call's outputs");
  expect(
      Forward(), [&](C& c) { return c.input<float>(TensorId()); }, "input of tensor id -1", "the model has 7");
  expect(
      Forward(), [&](C& c) { return c.parameter<float>(ParameterId(4)); }, "parameter of parameter id 4",
      "the model has 4");
  // Not in this phase.
  expect(
      Forward(), [&](C& c) { return c.input_gradient<float>(x_); }, "input_gradient of \"x\"",
      "forward has none; ask in backward");
  expect(
      Forward(), [&](C& c) { return c.parameter_gradient<float>(w_); }, "parameter_gradient of \"w\"",
      "forward has none");
  expect(
      Forward(), [&](C& c) { return c.output_gradient<BFloat16>(y_); }, "output_gradient of \"y\"", "forward has none");
  expect(
      Backward(), [&](C& c) { return c.input<float>(x_); }, "input of \"x\"", "backward has none; ask in forward");
  expect(
      Backward(), [&](C& c) { return c.output<BFloat16>(y_); }, "output of \"y\"", "backward has none");
  expect(
      Backward(), [&](C& c) { return c.parameter<float>(table_); }, "parameter of \"table\"", "forward_only_units");
  expect(
      Forward(), [&](C& c) { return c.saved<float>(x_); }, "saved of \"x\"", "ask for it as input");
  expect(
      Forward(), [&](C& c) { return c.saved<BFloat16>(y_); }, "saved of \"y\"", "ask for it as output");
  // Not to be written, or without a gradient.
  expect(
      Backward(), [&](C& c) { return c.saved<float>(x_); }, "saved of \"x\"", "ask for saved<const T>");
  expect(
      Backward(), [&](C& c) { return c.input_gradient<int32_t>(labels_); }, "input_gradient of \"labels\"",
      "integers have no gradient");
  expect(
      Backward(), [&](C& c) { return c.output_gradient<BFloat16>(z_); }, "output_gradient of \"z\"",
      "no gradient flows into it");
  // Declared, and forgotten by who made the context.
  expect(
      Context(Phase::kForward, {}), [&](C& c) { return c.input<float>(x_); }, "input of \"x\"",
      "no memory is bound to it");
}

TEST_F(ComputeContextTest, TheFirstRefusalIsKeptAndLaterRequestsAreServed) {
  ComputeContext c = Forward();
  c.input<BFloat16>(x_);
  c.output<float>(other_);
  EXPECT_EQ(c.input<float>(x_).data, f32_);
  EXPECT_THAT(c.status(), Refused("input of \"x\" as bf16", "it is f32"));
}

}  // namespace
}  // namespace reprise
