#include "reprise/core/model.h"

#include <functional>
#include <limits>
#include <string>
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

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// Two units; a reads x and writes y; b reads y, writes z and the loss. Tests change it and build.
struct Sample {
  ModelBuilder builder;
  UnitId u = builder.AddUnit("u"), v = builder.AddUnit("v");
  ParameterId p = builder.AddParameter(u, {.name = "p", .shape = {3, 2}});
  ParameterId q = builder.AddParameter(v, {.name = "q", .shape = {2}, .dtype = DType::kFloat32, .trainable = false});
  TensorId x = builder.AddInput({.name = "x", .shape = {4, 2}});
  TensorId y = builder.AddActivation({.name = "y", .shape = {4, 3}});
  TensorId z = builder.AddOutput({.name = "z", .shape = {4}});
  TensorId loss = builder.AddOutput({.name = "loss", .shape = {}, .dtype = DType::kFloat32});
  CallSpec a = {.name = "a", .units = {u}, .inputs = {x}, .outputs = {y}, .saved = {x}};
  CallSpec b = {.name = "b", .units = {v}, .inputs = {y}, .outputs = {z, loss}, .saved = {y, z}};

  absl::StatusOr<Model> Build() {
    ModelBuilder copy = builder;
    copy.AddCall(a);
    copy.AddCall(b);
    return copy.Build();
  }
};

TEST(ModelTest, AccessorsGiveWhatWasAdded) {
  Sample s;
  s.builder.SetLoss(s.loss);
  s.builder.KeepGradient(s.x);
  s.builder.AllowUnused(s.p);
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, s.Build());
  ASSERT_EQ(model.units().size(), 2);
  EXPECT_EQ(model.unit(s.v).name, "v");
  EXPECT_THAT(model.unit(s.u).parameters, ElementsAre(s.p));
  EXPECT_THAT(model.unit(s.v).parameters, ElementsAre(s.q));
  ASSERT_EQ(model.parameters().size(), 2);
  EXPECT_EQ(model.parameter(s.q).unit, s.v);
  EXPECT_FALSE(model.parameter(s.q).spec.trainable);
  EXPECT_TRUE(model.parameter(s.p).allow_unused);
  EXPECT_FALSE(model.parameter(s.q).allow_unused);
  ASSERT_EQ(model.tensors().size(), 4);
  EXPECT_EQ(model.tensor(s.x).kind, TensorKind::kInput);
  EXPECT_EQ(model.tensor(s.y).kind, TensorKind::kActivation);
  EXPECT_EQ(model.tensor(s.z).kind, TensorKind::kOutput);
  EXPECT_TRUE(model.tensor(s.x).keep_gradient);
  EXPECT_FALSE(model.tensor(s.y).keep_gradient);
  ASSERT_EQ(model.calls().size(), 2);
  EXPECT_EQ(model.call(CallId(0)), s.a);
  EXPECT_EQ(model.loss(), s.loss);
}

TEST(ModelTest, LossIsInvalidUnlessSet) {
  Sample s;
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, s.Build());
  EXPECT_FALSE(model.loss().valid());
}

TEST(ModelTest, ModelsWithOneDifferenceAreNotEqual) {
  Sample s, t;
  EXPECT_EQ(*s.Build(), *t.Build());
  t.a.recompute = true;
  EXPECT_FALSE(*s.Build() == *t.Build());
}

TEST(ModelTest, EmptyModelIsValid) { EXPECT_THAT(ModelBuilder().Build(), IsOk()); }

TEST(ModelTest, NumElementsIsTheProductAndOneForAScalar) {
  EXPECT_EQ(NumElements({3, 4, 5}), 60);
  EXPECT_EQ(NumElements(Shape{}), 1);
  EXPECT_EQ(NumElements({int64_t{1} << 40, int64_t{1} << 40, 0}), 0);
}

TEST(ModelTest, FindGivesTheIdOfAName) {
  Sample s;
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, s.Build());
  REPRISE_ASSERT_OK_AND_ASSIGN(const ParameterId q, model.FindParameter("q"));
  EXPECT_EQ(q, s.q);
  REPRISE_ASSERT_OK_AND_ASSIGN(const TensorId z, model.FindTensor("z"));
  EXPECT_EQ(z, s.z);
  for (size_t u = 0; u < model.units().size(); ++u) {
    EXPECT_EQ(model.FindUnit(model.units()[u].name).value(), UnitId(static_cast<int64_t>(u)));
  }
  for (size_t c = 0; c < model.calls().size(); ++c) {
    EXPECT_EQ(model.FindCall(model.calls()[c].name).value(), CallId(static_cast<int64_t>(c)));
  }
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model read, Model::FromJson(model.ToJson()));
  EXPECT_EQ(read.FindCall(s.a.name), model.FindCall(s.a.name));
}

TEST(ModelTest, FindOffersTheClosestName) {
  ModelBuilder builder;
  const UnitId unit = builder.AddUnit("u");
  for (const char* name : {"blocks.0.weight", "blocks.1.weight", "head.bias"}) {
    builder.AddParameter(unit, {.name = name, .shape = {1}});
  }
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, builder.Build());
  EXPECT_THAT(model.FindParameter("block.1.weigth"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("\"block.1.weigth\""), HasSubstr("did you mean \"blocks.1.weight\""))));
  EXPECT_THAT(model.FindUnit("v"),
              StatusIs(absl::StatusCode::kNotFound, "no unit \"v\" among the model's 1 units; did you mean \"u\"?"));
  EXPECT_THAT(model.FindCall("c"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("the model has no calls")));
  EXPECT_THAT(model.FindTensor("x"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("the model has no tensors")));
  EXPECT_THAT(model.FindParameter(std::string(100000, 'h')),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("(100000 bytes)")));
}

TEST(ModelTest, ToStringHasOneLinePerThing) {
  Sample s;
  s.builder.SetLoss(s.loss);
  s.builder.KeepGradient(s.x);
  s.a.scratch_bytes = 128;
  s.b.recompute = true;
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, s.Build());
  EXPECT_EQ(model.ToString(),
            "unit u; parameters: p\n"
            "unit v; parameters: q\n"
            "parameter p bf16[3,2] of u\n"
            "parameter q f32[2] of v frozen\n"
            "input x bf16[4,2] keep_gradient\n"
            "activation y bf16[4,3]\n"
            "output z bf16[4]\n"
            "output loss f32[]\n"
            "call a; units: u; inputs: x; outputs: y; saved: x; scratch_bytes: 128\n"
            "call b; units: v; inputs: y; outputs: z, loss; saved: y, z; recompute\n"
            "loss loss\n");
}

TEST(ModelTest, LegalButUnusualModels) {
  struct Case {
    const char* what;
    std::function<void(Sample&)> change;
  };
  const Case cases[] = {
      {"a unit without parameters", [](Sample& s) { s.a.units.push_back(s.builder.AddUnit("empty")); }},
      {"a call without a unit", [](Sample& s) { s.a.units.clear(); }},
      {"an output nobody reads", [](Sample& s) { s.b.saved.clear(); }},
      {"a private tensor", [](Sample& s) { s.a.saved.push_back(s.builder.AddActivation({.name = "private"})); }},
      {"an output that a later call reads",
       [](Sample& s) {
         const TensorId w = s.builder.AddOutput({.name = "w"});
         s.a.outputs.push_back(w);
         s.b.inputs.push_back(w);
       }},
      {"state", [](Sample& s) { s.a.state = {s.builder.AddState({.name = "cache", .external = true})}; }},
      {"a unit of two calls", [](Sample& s) { s.b.units.push_back(s.u); }},
      {"a tied parameter", [](Sample& s) { s.b.parameters = {s.p}; }},
      {"an external input",
       [](Sample& s) { s.a.inputs.push_back(s.builder.AddInput({.name = "i", .external = true})); }},
      {"empty tensors",
       [](Sample& s) {
         s.a.saved.push_back(s.builder.AddActivation({.name = "none", .shape = {0, 9}}));
       }},
      {"a name of a unit, a parameter, a tensor and a call",
       [](Sample& s) {
         s.builder.AddParameter(s.builder.AddUnit("a"), {.name = "a"});
         s.a.saved.push_back(s.builder.AddActivation({.name = "a"}));
       }},
      {"a name in UTF-8", [](Sample& s) { s.a.name = "Größe \xe2\x82\xac \xf0\x9f\x98\x80"; }},
      {"the longest name", [](Sample& s) { s.a.name = std::string(256, 'n'); }},
      {"the largest parameter",
       [](Sample& s) { s.builder.AddParameter(s.u, {.name = "large", .shape = {(int64_t{1} << 61) - 1}}); }},
  };
  for (const Case& c : cases) {
    Sample s;
    c.change(s);
    EXPECT_THAT(s.Build(), IsOk()) << c.what;
  }
}

TEST(ModelTest, RefusesEveryMistakeByName) {
  struct Case {
    std::function<void(Sample&)> change;
    std::string message;
  };
  const auto tensor = [](Sample& s, TensorSpec spec) { s.a.saved.push_back(s.builder.AddActivation(spec)); };
  const Case cases[] = {
      // Names.
      {[](Sample& s) { s.builder.AddUnit(""); }, "unit 2 has no name"},
      {[](Sample& s) { s.builder.AddUnit("u"); }, "units 0 and 2 are both named \"u\""},
      {[](Sample& s) { s.builder.AddParameter(s.v, {.name = "p"}); }, "parameters 0 and 2 are both named \"p\""},
      {[&](Sample& s) { tensor(s, {.name = "x"}); }, "tensors 0 and 4 are both named \"x\""},
      {[](Sample& s) { s.b.name = "a"; }, "calls 0 and 1 are both named \"a\""},
      {[](Sample& s) { s.b.name = "b\nc"; },
       "name of call 1, \"b\\nc\", holds U+000A, a control character, at byte 1; use visible"},
      {[](Sample& s) { s.b.name = "b\x7f"; }, "holds U+007F, a control"},
      {[](Sample& s) { s.b.name = "b\xff"; }, "is not UTF-8"},
      {[](Sample& s) { s.b.name = "b\xed\xa0\x80"; }, "is not UTF-8"},      // a surrogate
      {[](Sample& s) { s.b.name = "b\xc0\x80"; }, "is not UTF-8"},          // overlong
      {[](Sample& s) { s.b.name = "b\xe2\x82"; }, "is not UTF-8"},          // cut
      {[](Sample& s) { s.b.name = "b\xe0\x9f\xbf"; }, "is not UTF-8"},      // overlong, three bytes
      {[](Sample& s) { s.b.name = "b\xf0\x8f\xbf\xbf"; }, "is not UTF-8"},  // overlong, four bytes
      {[](Sample& s) { s.b.name = "b\xf4\x90\x80\x80"; }, "is not UTF-8"},  // beyond U+10FFFF
      {[](Sample& s) { s.b.name = "b\xe2\x82z"; }, "is not UTF-8"},         // no continuation
      {[](Sample& s) { s.b.name = "b\xc2\x80"; }, "name of call 1, \"b\\xc2\\x80\", holds U+0080, a control"},
      {[](Sample& s) { s.b.name = "b\xc2\x9f"; }, "holds U+009F, a control"},
      {[](Sample& s) { s.b.name = "b\xd8\x9c"; }, "holds U+061C, a format"},
      {[](Sample& s) { s.b.name = "b\xe2\x80\x8f"; }, "holds U+200F, a format"},
      {[](Sample& s) { s.b.name = "b\xe2\x80\xa8"; }, "holds U+2028, a space or separator"},
      {[](Sample& s) { s.b.name = "b\xe2\x80\xae"; }, "\"b\\xe2\\x80\\xae\", holds U+202E, a format"},
      {[](Sample& s) { s.b.name = "b\xe2\x81\xa6"; }, "holds U+2066, a format"},
      {[](Sample& s) { s.b.name = "b\xe2\x81\xa9"; }, "holds U+2069, a format"},
      {[](Sample& s) { s.b.name = std::string(257, 'n'); }, "longer than 256 bytes"},
      // Ids.
      {[](Sample& s) { s.builder.AddParameter(UnitId(2), {.name = "r"}); }, "parameter \"r\" is added to unit id 2"},
      {[](Sample& s) { s.builder.AddParameter(UnitId(), {.name = "r"}); }, "parameter \"r\" is added to unit id -1"},
      {[](Sample& s) { s.builder.SetLoss(TensorId()); }, "SetLoss of tensor id -1"},
      {[](Sample& s) { s.builder.KeepGradient(TensorId(9)); }, "KeepGradient of tensor id 9"},
      {[](Sample& s) { s.builder.AllowUnused(ParameterId(7)); }, "AllowUnused of parameter id 7"},
      {[](Sample& s) { s.a.units = {UnitId(5)}; }, "call \"a\" names unit id 5, and the model has 2 units"},
      {[](Sample& s) { s.a.forward_only_units = {UnitId()}; }, "call \"a\" names unit id -1"},
      {[](Sample& s) { s.a.parameters = {ParameterId(2)}; }, "call \"a\" names parameter id 2"},
      {[](Sample& s) { s.a.inputs = {TensorId(4)}; }, "call \"a\" names tensor id 4 in inputs"},
      {[](Sample& s) { s.a.outputs = {TensorId(-3)}; }, "call \"a\" names tensor id -3 in outputs"},
      {[](Sample& s) { s.a.saved = {TensorId(4)}; }, "call \"a\" names tensor id 4 in saved"},
      {[](Sample& s) { s.a.state = {TensorId(4)}; }, "call \"a\" names tensor id 4 in state"},
      {[](Sample& s) { s.a.inputs = {TensorId(int64_t{1} << 32)}; }, "call \"a\" names tensor id -1 in inputs"},
      {[](Sample& s) { s.a.units = {UnitId(kMax)}; }, "call \"a\" names unit id -1"},
      {[](Sample& s) { s.a.parameters = {ParameterId(-1 - kMax)}; }, "call \"a\" names parameter id -1"},
      // Sizes and dtypes.
      {[&](Sample& s) {
         tensor(s, {.name = "t", .shape = {2, -1}});
       },
       "tensor \"t\" has the negative extent -1"},
      {[&](Sample& s) {
         tensor(s, {.name = "t", .shape = {kMax, kMax}});
       },
       "tensor \"t\" is too large"},
      {[&](Sample& s) {
         tensor(s, {.name = "t", .shape = {kMax, kMax, 0}});
       },
       "tensor \"t\" is too large"},
      {[&](Sample& s) { tensor(s, {.name = "t", .shape = {int64_t{1} << 61}}); }, "tensor \"t\" is too large"},
      {[&](Sample& s) {
         tensor(s, {.name = "t", .shape = {int64_t{1} << 60}});
         tensor(s, {.name = "t2", .shape = {int64_t{1} << 60}});
       },
       "tensor \"t2\" needs 2305843009213693952 bytes, which brings"},
      {[](Sample& s) {
         s.builder.AddParameter(s.u, {.name = "r", .shape = {int64_t{1} << 31, int64_t{1} << 30}});
       },
       "parameter \"r\" is too large"},
      {[](Sample& s) { s.builder.AddParameter(s.u, {.name = "r", .shape = {int64_t{1} << 62}}); },
       "parameter \"r\" is too large"},
      {[](Sample& s) { s.a.scratch_bytes = -1; }, "call \"a\" asks for -1 bytes of scratch"},
      {[](Sample& s) { s.a.scratch_bytes = kMax; }, "scratch of call \"a\" needs"},
      {[](Sample& s) { s.builder.AddParameter(s.u, {.name = "r", .dtype = DType::kInt32}); },
       "parameter \"r\" is i32; parameters must be floating-point"},
      {[](Sample& s) { s.builder.AddParameter(s.u, {.name = "r", .reduce_dtype = DType::kUInt8}); },
       "parameter \"r\" has the reduce dtype u8"},
      {[&](Sample& s) { tensor(s, {.name = "t", .dtype = DType(44)}); }, "tensor \"t\" has dtype 44, which does not"},
      {[](Sample& s) { s.builder.AddParameter(s.u, {.name = "r", .dtype = DType(44)}); },
       "parameter \"r\" is unknown; parameters must be floating-point"},
      {[&](Sample& s) { tensor(s, {.name = "t", .external = true}); }, "tensor \"t\" is an external activation"},
      // Gradients and the loss.
      {[](Sample& s) { s.builder.KeepGradient(s.y); }, "KeepGradient of tensor \"y\", which is not an input"},
      {[](Sample& s) {
         s.a.inputs.push_back(s.builder.AddInput({.name = "labels", .dtype = DType::kInt32}));
         s.builder.KeepGradient(s.a.inputs.back());
       },
       "KeepGradient of tensor \"labels\", which is i32"},
      {[](Sample& s) { s.builder.SetLoss(s.z); }, "the loss tensor \"z\" is bf16[4];"},
      {[](Sample& s) { s.builder.SetLoss(s.x); }, "the loss tensor \"x\" is bf16[4,2] and no output"},
      // Units and parameters of a call.
      {[](Sample& s) {
         s.a.units = {s.u, s.u};
       },
       "call \"a\" names unit \"u\" twice"},
      {[](Sample& s) { s.a.forward_only_units = {s.u}; }, "call \"a\" names unit \"u\" twice"},
      {[](Sample& s) {
         s.a.parameters = {s.q, s.q};
       },
       "call \"a\" names parameter \"q\" twice"},
      {[](Sample& s) { s.a.parameters = {s.p}; }, "call \"a\" names parameter \"p\" and all of its unit \"u\""},
      // Who reads and writes what.
      {[](Sample& s) { std::swap(s.a, s.b); }, "call \"b\" reads tensor \"y\" before call \"a\" writes it"},
      {[](Sample& s) { s.b.inputs.push_back(s.b.outputs[0]); }, "tensor \"z\" is both input and output of call \"b\""},
      {[](Sample& s) { s.b.outputs.push_back(s.y); }, "tensor \"y\" is written twice, by call \"a\" and by call \"b\""},
      {[](Sample& s) { s.a.outputs.clear(); }, "call \"b\" reads tensor \"y\", which no call writes"},
      {[](Sample& s) { s.b.outputs.push_back(s.x); }, "call \"b\" writes input tensor \"x\""},
      {[](Sample& s) { s.b.inputs.push_back(s.y); }, "call \"b\" names tensor \"y\" twice in inputs"},
      {[](Sample& s) { s.b.outputs.push_back(s.z); }, "call \"b\" names tensor \"z\" twice in outputs"},
      {[](Sample& s) { s.b.saved.push_back(s.z); }, "call \"b\" names tensor \"z\" twice in saved"},
      {[](Sample& s) { s.a.state = {s.x}; }, "call \"a\" names tensor \"x\" in state, and it is not a state tensor"},
      {[](Sample& s) { s.a.inputs.push_back(s.builder.AddState({.name = "k"})); },
       "names state tensor \"k\" in inputs"},
      {[](Sample& s) { s.a.outputs.push_back(s.builder.AddState({.name = "k"})); },
       "names state tensor \"k\" in outputs"},
      {[](Sample& s) { s.a.state = {s.builder.AddState({.name = "k"})}, s.a.state.push_back(s.a.state[0]); },
       "names tensor \"k\" twice in state"},
      {[](Sample& s) { s.b.saved.push_back(s.x); }, "call \"b\" saves tensor \"x\", which it neither reads nor writes"},
      {[](Sample& s) { s.a.saved.push_back(s.z); }, "call \"a\" saves tensor \"z\", which it neither reads nor writes"},
      {[](Sample& s) {
         s.a.saved.push_back(s.builder.AddActivation({.name = "private"}));
         s.b.saved.push_back(s.a.saved.back());
       },
       "tensor \"private\" is saved as a private tensor by call \"a\" and by call \"b\""},
      {[](Sample& s) {
         s.a.saved.push_back(s.builder.AddActivation({.name = "private"}));
         s.b.inputs.push_back(s.a.saved.back());
       },
       "call \"b\" reads tensor \"private\", which no call writes"},
      // Left over.
      {[](Sample& s) { s.builder.AddInput({.name = "left"}); }, "no call reads input tensor \"left\""},
      {[](Sample& s) { s.builder.AddState({.name = "left"}); }, "no call uses state tensor \"left\""},
      {[](Sample& s) { s.builder.AddActivation({.name = "left"}); }, "no call writes or saves tensor \"left\""},
      {[](Sample& s) { s.b.saved.push_back(s.builder.AddOutput({.name = "left"})); },
       "call \"b\" saves tensor \"left\", which it neither reads nor writes"},
      {[](Sample& s) { s.builder.AddOutput({.name = "left"}); }, "no call writes output tensor \"left\""},
  };
  for (const Case& c : cases) {
    Sample s;
    c.change(s);
    EXPECT_THAT(s.Build(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
}

TEST(ModelTest, NamesMayBeAnyVisibleText) {
  for (const char* name :
       {" ", "\xc2\xa1", "\xc2\xae", "\xe2\x80\x90", "\xe2\x80\xa7", "\xef\xbf\xbd", "\xf0\x9f\x98\x80"}) {
    Sample s;
    s.b.name = name;
    EXPECT_THAT(s.Build(), IsOk()) << name;
  }
}

TEST(ModelTest, RefusesMoreItemsThanAPlanCanUse) {
  ModelBuilder builder;
  for (int i = 0; i <= kMaxModelItems; ++i) builder.AddUnit("u");
  EXPECT_THAT(builder.Build(),
              StatusIs(absl::StatusCode::kInvalidArgument, "the model has 1048577 units; give at most 1048576"));
}

TEST(ModelTest, ReportsTheFirstOfSeveralMistakes) {
  Sample s;
  s.b.name = "a";
  s.builder.AddInput({.name = "x"});
  s.builder.AddUnit("u");
  EXPECT_THAT(s.Build(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("units 0 and 2")));
  s.builder.AllowUnused(ParameterId(7));
  s.builder.SetLoss(TensorId());
  EXPECT_THAT(s.Build(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("AllowUnused of parameter id 7")));
}

}  // namespace
}  // namespace reprise
