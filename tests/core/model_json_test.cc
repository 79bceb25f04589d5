#include <fstream>
#include <iterator>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/model.h"
#include "reprise/core/stack_model.h"
#include "tests/testing/random_model.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using reprise::testing::IsOk;
using reprise::testing::RandomModel;
using reprise::testing::StatusIs;
using ::testing::HasSubstr;

// Tests run in the project's root.
std::string ReadExample() {
  std::ifstream file("tests/core/data/two_units.json");
  EXPECT_TRUE(file.is_open());
  return {std::istreambuf_iterator<char>(file), {}};
}

// The model of two_units.json.
Model ExampleModel() {
  ModelBuilder builder;
  const UnitId embedding = builder.AddUnit("embedding"), linear = builder.AddUnit("linear");
  const ParameterId table = builder.AddParameter(
      embedding, {.name = "table", .shape = {101, 16}, .dtype = DType::kFloat32, .reduce_dtype = DType::kFloat32});
  builder.AddParameter(linear, {.name = "weight", .shape = {101, 16}});
  builder.AddParameter(linear, {.name = "bias", .shape = {101}, .trainable = false});
  builder.AllowUnused(builder.AddParameter(embedding, {.name = "spare", .shape = {}, .dtype = DType::kFloat32}));
  const TensorId tokens = builder.AddInput({.name = "tokens", .shape = {8}, .dtype = DType::kInt32});
  const TensorId offset = builder.AddInput({.name = "offset", .shape = {8, 16}});
  builder.KeepGradient(offset);
  const TensorId hidden = builder.AddActivation({.name = "hidden", .shape = {8, 16}});
  const TensorId norms = builder.AddActivation({.name = "norms", .shape = {8}, .dtype = DType::kFloat32});
  const TensorId logits = builder.AddOutput({.name = "logits", .shape = {8, 101}, .external = true});
  const TensorId steps = builder.AddState({.name = "steps", .shape = {1}, .dtype = DType::kInt32});
  const TensorId loss = builder.AddOutput({.name = "loss", .shape = {}, .dtype = DType::kFloat32});
  builder.AddCall({.name = "embed",
                   .inputs = {tokens, offset},
                   .outputs = {hidden},
                   .saved = {tokens, norms},
                   .state = {steps},
                   .forward_only_units = {embedding}});
  builder.AddCall({.name = "head",
                   .units = {linear},
                   .parameters = {table},
                   .inputs = {hidden, tokens},
                   .outputs = {logits, loss},
                   .saved = {hidden, logits, tokens},
                   .scratch_bytes = 4096,
                   .recompute = true});
  builder.SetLoss(loss);
  return *builder.Build();
}

TEST(ModelJsonTest, ReadsTheExampleFile) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, Model::FromJson(ReadExample()));
  EXPECT_EQ(model, ExampleModel()) << model.ToString();
}

TEST(ModelJsonTest, WritesWhatItReads) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, Model::FromJson(ExampleModel().ToJson()));
  EXPECT_EQ(model, ExampleModel()) << model.ToString();
}

TEST(ModelJsonTest, WritesOneEntryPerLineAndLeavesOutDefaults) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, StackModel(1, {2, 3}, DType::kFloat32, 4));
  EXPECT_EQ(model.ToJson(), R"({
  "units": [
    {"name":"u0"}
  ],
  "parameters": [
    {"unit":"u0","name":"u0.weight","shape":[2,3],"dtype":"f32"}
  ],
  "tensors": [
    {"name":"x","kind":"input","shape":[4,3],"dtype":"f32"},
    {"name":"y0","kind":"activation","shape":[4,2],"dtype":"f32"},
    {"name":"loss","kind":"output","shape":[],"dtype":"f32"}
  ],
  "calls": [
    {"name":"c0","units":["u0"],"inputs":["x"],"outputs":["y0"],"saved":["x"]},
    {"name":"loss","inputs":["y0"],"outputs":["loss"],"saved":["y0"]}
  ],
  "loss": "loss"
}
)");
}

TEST(ModelJsonTest, EmptyObjectIsTheEmptyModel) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, Model::FromJson("{}"));
  EXPECT_EQ(model, Model());
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model again, Model::FromJson(Model().ToJson()));
  EXPECT_EQ(again, Model());
}

TEST(ModelJsonTest, OmittedKeysTakeTheDefaultsOfTheSpecs) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model,
                               Model::FromJson(R"({"units": [{"name": "u"}], "parameters": [{"unit": "u", "name": "p"}],
      "tensors": [{"name": "x", "kind": "input"}], "calls": [{"name": "c", "inputs": ["x"]}]})"));
  EXPECT_EQ(model.parameters()[0].spec, ParameterSpec{.name = "p"});
  EXPECT_FALSE(model.parameters()[0].allow_unused);
  EXPECT_EQ(model.tensors()[0].spec, TensorSpec{.name = "x"});
  EXPECT_FALSE(model.tensors()[0].keep_gradient);
  const CallSpec call = {.name = "c", .inputs = {TensorId(0)}};
  EXPECT_EQ(model.calls()[0], call);
  EXPECT_FALSE(model.loss().valid());
}

TEST(ModelJsonTest, NamesWithQuotesAndUnicodeSurvive) {
  ModelBuilder builder;
  builder.AddUnit("a\"b\\c/ \xf0\x9f\x98\x80 \xc3\xa4");
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, builder.Build());
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model read, Model::FromJson(model.ToJson()));
  EXPECT_EQ(read, model);
}

TEST(ModelJsonPropertyTest, RandomModelsSurviveTheWayThroughJson) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Model model = RandomModel(seed);
    REPRISE_ASSERT_OK_AND_ASSIGN(const Model read, Model::FromJson(model.ToJson()));
    EXPECT_EQ(read, model) << "seed " << seed;
    EXPECT_EQ(read.ToJson(), model.ToJson()) << "seed " << seed;
  }
}

// The example with one place changed, and the start of the message.
struct Mistake {
  std::string from, to, message;
};

TEST(ModelJsonTest, RefusesEveryMistakeByItsPlace) {
  const Mistake mistakes[] = {
      // Text.
      {"\"loss\": \"loss\"\n}", "\"loss\": \"loss\"", "JSON text: no valid JSON at byte"},
      {"\"loss\": \"loss\"\n}", "\"loss\": \"loss\"}}", "JSON text: no valid JSON at byte"},
      {"\"tokens\"", "\"tok\x01ns\"", "JSON text: no valid JSON at byte"},
      {"\"tokens\"", "\"tok\xffns\"", "JSON text: no valid JSON at byte"},
      {"\"shape\": [8]", "\"shape\": [1e999]", "JSON text: no valid JSON at byte"},
      {"\"kind\": \"input\"", "\"kind\": \"input\", \"kind\": \"state\"", "JSON text: the key \"kind\" stands twice"},
      {"\"shape\": [8]", "\"shape\": " + std::string(100000, '[') + std::string(100000, ']'),
       "JSON text: lists and objects are nested deeper than 16"},
      // Keys.
      {"\"units\": [\n", "\"unit\": [\n", "JSON text: unknown key \"unit\"; the keys are units, parameters, tensors"},
      {"\"keep_gradient\"", "\"gradient\"", "tensors[1]: unknown key \"gradient\"; the keys are name, kind, shape"},
      {"{\"name\": \"linear\"}", "{\"name\": \"linear\", \"shape\": []}", "units[1]: unknown key \"shape\""},
      {"\"unit\": \"linear\", \"name\": \"bias\"", "\"name\": \"bias\"", "parameters[2]: the key \"unit\" is missing"},
      {"\"kind\": \"activation\", \"shape\": [8, 16]", "\"shape\": [8, 16]", "tensors[2]: the key \"kind\" is missing"},
      {"{\"name\": \"linear\"}", "{}", "units[1]: the key \"name\" is missing"},
      // Types.
      {"{\"name\": \"linear\"}", "\"linear\"", "units[1]: is of type string; give an object"},
      {"\"loss\": \"loss\"\n", "\"loss\": 6\n", "loss: is of type number; give a string"},
      {"\"shape\": [8]", "\"shape\": 8", "tensors[0].shape: is of type number; give a list"},
      {"\"shape\": [8]", "\"shape\": [8.0]", "tensors[0].shape[0]: is 8.0; give an integer"},
      {"\"shape\": [8]", "\"shape\": [\"8\"]", "tensors[0].shape[0]: is of type string; give an integer"},
      {"\"shape\": [8, 16]", "\"shape\": [8, 9223372036854775808]",
       "tensors[1].shape[1]: is 9223372036854775808; give"},
      {"\"shape\": [8, 16]", "\"shape\": [8, 99999999999999999999]", "tensors[1].shape[1]: is 1e+20; give an integer"},
      {"\"scratch_bytes\": 4096", "\"scratch_bytes\": null", "calls[1].scratch_bytes: is of type null"},
      {"\"recompute\": true", "\"recompute\": 1", "calls[1].recompute: is of type number; give true or false"},
      {"\"dtype\": \"i32\"", "\"dtype\": \"int32\"", "tensors[0].dtype: unknown dtype \"int32\"; use one of \"f32\""},
      {"\"reduce_dtype\": \"f32\"", "\"reduce_dtype\": null",
       "parameters[0].reduce_dtype: is of type null; give a string"},
      {"\"kind\": \"state\"", "\"kind\": \"cache\"", "tensors[5].kind: unknown kind \"cache\"; use one of \"input\""},
      // Names.
      {"{\"name\": \"linear\"}", "{\"name\": \"embedding\"}",
       "units[1].name: \"embedding\" is already the name of unit 0"},
      {"\"name\": \"bias\"", "\"name\": \"weight\"",
       "parameters[2].name: \"weight\" is already the name of parameter 1"},
      {"\"name\": \"hidden\"", "\"name\": \"tokens\"", "tensors[2].name: \"tokens\" is already the name of tensor 0"},
      {"\"name\": \"head\"", "\"name\": \"embed\"", "calls[1].name: \"embed\" is already the name of call 0"},
      {"\"unit\": \"linear\", \"name\": \"bias\"", "\"unit\": \"line\", \"name\": \"bias\"",
       "parameters[2].unit: there is no unit \"line\"; list it in \"units\""},
      {"\"inputs\": [\"hidden\"", "\"inputs\": [\"hiden\"", "calls[1].inputs[0]: there is no tensor \"hiden\""},
      {"\"parameters\": [\"table\"]", "\"parameters\": [\"bais\"]", "calls[1].parameters[0]: there is no parameter"},
      {"\"loss\": \"loss\"\n", "\"loss\": \"\"\n", "loss: there is no tensor \"\""},
      // What Build checks.
      {"\"shape\": [8]", "\"shape\": [-8]", "tensor \"tokens\" has the negative extent -8"},
      {"\"loss\": \"loss\"\n", "\"loss\": \"logits\"\n", "the loss tensor \"logits\""},
      {"\"units\": [\"linear\"]", "\"units\": [\"linear\", \"linear\"]", "call \"head\" names unit \"linear\" twice"},
  };
  const std::string example = ReadExample();
  for (const Mistake& mistake : mistakes) {
    const size_t at = example.find(mistake.from);
    ASSERT_NE(at, std::string::npos) << mistake.from;
    std::string text = example;
    text.replace(at, mistake.from.size(), mistake.to);
    EXPECT_THAT(Model::FromJson(text),
                StatusIs(absl::StatusCode::kInvalidArgument, ::testing::StartsWith(mistake.message)));
  }
}

TEST(ModelJsonTest, RefusesWhatIsNoObject) {
  for (const char* text : {"", " ", "nul", "\"", "{", "[1,", "\xef\xbb\xbf"}) {
    EXPECT_THAT(Model::FromJson(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no valid JSON")))
        << text;
  }
  for (const char* text : {"null", "1", "[]", "\"text\""}) {
    EXPECT_THAT(Model::FromJson(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("give an object")))
        << text;
  }
}

TEST(ModelJsonTest, ANulByteIsNoEndOfTheText) {
  const std::string example = ReadExample();
  for (const size_t at : {size_t{0}, size_t{40}, example.size()}) {
    std::string text = example;
    text.insert(at, 1, '\0');
    EXPECT_THAT(Model::FromJson(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         absl::StrCat("JSON text: byte ", at + 1, " of ", text.size(), " is a NUL; remove it")));
  }
  EXPECT_THAT(Model::FromJson(absl::StrCat(example, std::string("\0, and more", 11))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is a NUL")));
}

TEST(ModelJsonTest, EveryCutOfTheExampleIsRefused) {
  const std::string example = ReadExample();
  const size_t end = example.rfind('}');
  ASSERT_NE(end, std::string::npos);
  for (size_t length = 0; length <= end; length += 13) {
    EXPECT_THAT(Model::FromJson(example.substr(0, length)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")));
  }
  EXPECT_THAT(Model::FromJson(example.substr(0, end + 1)), IsOk());
}

}  // namespace
}  // namespace reprise
