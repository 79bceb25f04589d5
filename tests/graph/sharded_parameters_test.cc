#include "reprise/graph/sharded_parameters.h"

#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "graph/machine.h"
#include "reprise/graph/host_world.h"
#include "tests/graph/session_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

constexpr int kWorldSizes[] = {1, 2, 3, 4, 5, 8};

std::shared_ptr<World> MakeWorld(int size) { return *CreateHostWorld({.size = size}); }

// Odd shapes, empty ones, both dtypes and a frozen parameter in one unit.
Model OddModel() {
  ModelBuilder builder;
  const UnitId a = builder.AddUnit("a"), b = builder.AddUnit("b");
  builder.AddParameter(a, {.name = "a.weight", .shape = {7, 13}});
  builder.AddParameter(a, {.name = "a.bias", .shape = {1}, .dtype = DType::kFloat32});
  builder.AddParameter(b, {.name = "b.scalar", .shape = {}});
  builder.AddParameter(a, {.name = "a.second", .shape = {5, 19}});
  builder.AddParameter(a, {.name = "a.frozen", .shape = {65}, .trainable = false});
  builder.AddParameter(b, {.name = "b.empty", .shape = {0, 5}});
  builder.AddParameter(b, {.name = "b.long", .shape = {3, 333}, .dtype = DType::kFloat32});
  builder.AddParameter(b, {.name = "b.reduce_dtype", .shape = {129}, .reduce_dtype = DType::kFloat32});
  return *builder.Build();
}

std::vector<float> Ramp(size_t size, float first) {
  std::vector<float> values(size);
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST(ShardedParametersTest, ReadsBackWhatWasWrittenForEveryWorldSize) {
  const Model model = OddModel();
  for (const int size : kWorldSizes) {
    SCOPED_TRACE(size);
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, ShardedParameters::Create(MakeWorld(size), model));
    for (size_t p = 0; p < model.parameters().size(); ++p) {
      const ParameterSpec& spec = model.parameters()[p].spec;
      // Beyond 8 bits, so that a value which went through bf16 would differ.
      ASSERT_THAT(parameters->Write(spec.name, Ramp(NumElements(spec.shape), 1000.0f * p + 257)), IsOk());
    }
    for (size_t p = 0; p < model.parameters().size(); ++p) {
      const ParameterSpec& spec = model.parameters()[p].spec;
      REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> values, parameters->Read(spec.name));
      EXPECT_EQ(values, Ramp(NumElements(spec.shape), 1000.0f * p + 257)) << spec.name;
    }
  }
}

TEST(ShardedParametersTest, MastersInBf16RoundToNearest) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters,
                               ShardedParameters::Create(MakeWorld(3), OddModel(), DType::kBFloat16));
  for (const char* name : {"a.weight", "b.long"}) {
    const size_t size = static_cast<size_t>(
        NumElements(parameters->model().parameter(*parameters->model().FindParameter(name)).spec.shape));
    std::vector<float> want;
    for (const float value : Ramp(size, 300)) want.push_back(static_cast<float>(BFloat16(value)));
    ASSERT_THAT(parameters->Write(name, Ramp(size, 300)), IsOk());
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> values, parameters->Read(name));
    EXPECT_EQ(values, want) << name;
  }
}

TEST(ShardedParametersTest, WeightsAreTheCastOfTheMastersAndPaddingIsZero) {
  ModelBuilder builder;
  builder.AddParameter(builder.AddUnit("unit"), {.name = "w", .shape = {70}});
  const auto world = MakeWorld(1);
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, ShardedParameters::Create(world, *builder.Build()));
  ASSERT_THAT(parameters->Write("w", Ramp(70, 1000)), IsOk());
  const internal::MemoryBlock& block = *parameters->memory(Storage::kWeights);
  ASSERT_GE(block.num_bytes(), 2 * 128);
  std::vector<BFloat16> weights(static_cast<size_t>(block.num_bytes() / 2));
  ASSERT_THAT(internal::MachineOf(*world).CopyToHost(0, weights.data(), block.address(0), block.num_bytes()), IsOk());
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_EQ(weights[i].bits, i < 70 ? BFloat16(1000.0f + i).bits : 0) << i;
  }
}

TEST(ShardedParametersTest, InitialValuesDoNotDependOnTheWorldSize) {
  std::vector<std::vector<float>> first;
  for (const int size : kWorldSizes) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, ShardedParameters::Create(MakeWorld(size), OddModel()));
    ASSERT_THAT(parameters->Initialize(Normal(/*seed=*/5, /*stddev=*/0.5f)), IsOk());
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto values, testing::ReadAll(*parameters));
    if (first.empty()) first = values;
    EXPECT_EQ(values, first) << "world size " << size;
  }
}

TEST(ShardedParametersTest, InitializerSeesEveryElementOnce) {
  for (const int size : kWorldSizes) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, ShardedParameters::Create(MakeWorld(size), OddModel()));
    std::map<std::string, std::vector<int>> seen;
    ASSERT_THAT(parameters->Initialize([&](const ParameterSpec& spec, int64_t first, absl::Span<float> values) {
      std::vector<int>& counts = seen[spec.name];
      counts.resize(static_cast<size_t>(NumElements(spec.shape)));
      for (size_t i = 0; i < values.size(); ++i) ++counts.at(static_cast<size_t>(first) + i);
    }),
                IsOk());
    EXPECT_EQ(seen.size(), 7u) << "all but the empty parameter";
    for (const auto& [name, counts] : seen) EXPECT_THAT(counts, ::testing::Each(1)) << name;
  }
}

TEST(ShardedParametersTest, WhatWasNeverSetIsNotRead) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, ShardedParameters::Create(MakeWorld(2), OddModel()));
  const auto never_set = [](const std::string& name) {
    return StatusIs(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat("Read: parameter \"", name, "\" was never set; call ShardedParameters::Initialize or Write"));
  };
  EXPECT_THAT(parameters->Read("a.weight"), never_set("a.weight"));
  EXPECT_THAT(parameters->Read("a.frozen"), never_set("a.frozen"));
  EXPECT_THAT(parameters->Read("b.empty"), IsOk());
  EXPECT_THAT(parameters->CheckSet("x"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("x: parameter \"a.")));
  ASSERT_THAT(parameters->Write("a.bias", {2.0f}), IsOk());
  EXPECT_THAT(parameters->Read("a.bias"), IsOk());
  EXPECT_THAT(parameters->Read("a.weight"), never_set("a.weight"));
  EXPECT_FALSE(parameters->Write("a.weight", {1.0f}).ok());
  EXPECT_THAT(parameters->Read("a.weight"), never_set("a.weight"));
  parameters->MarkChanged();
  EXPECT_THAT(parameters->Read("a.weight"), never_set("a.weight")) << "a change sets nothing";
  EXPECT_EQ(parameters->memory(Storage::kSession), nullptr);
}

TEST(ShardedParametersTest, ExceptionsOfAnInitializerBecomeInternal) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, ShardedParameters::Create(MakeWorld(2), OddModel()));
  const int64_t version = parameters->version();
  EXPECT_THAT(parameters->Initialize([](const ParameterSpec& spec, int64_t, absl::Span<float>) {
    if (spec.name == "b.long") throw std::runtime_error("no file");
  }),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("initializer of parameter \"b.long\" threw an exception: no file")));
  EXPECT_GT(parameters->version(), version) << "parameters before it have changed";
  EXPECT_THAT(parameters->Initialize([](const ParameterSpec&, int64_t, absl::Span<float>) { throw 7; }),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("threw something that is not a std::exception")));
  EXPECT_THAT(parameters->Initialize(Constant(1)), IsOk());
}

TEST(ShardedParametersTest, VersionGrowsWithEveryChange) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, ShardedParameters::Create(MakeWorld(2), OddModel()));
  int64_t version = parameters->version();
  const auto expect_growth = [&](const char* what) {
    EXPECT_GT(parameters->version(), version) << what;
    version = parameters->version();
  };
  ASSERT_THAT(parameters->Initialize(Constant(1)), IsOk());
  expect_growth("Initialize");
  ASSERT_THAT(parameters->Write("a.bias", {2.0f}), IsOk());
  expect_growth("Write");
  parameters->MarkChanged();
  expect_growth("MarkChanged");
  EXPECT_THAT(parameters->Read("a.bias"), IsOk());
  EXPECT_FALSE(parameters->Write("a.bias", {1.0f, 2.0f}).ok());
  EXPECT_EQ(parameters->version(), version) << "neither a read nor a refused write is a change";
}

TEST(ShardedParametersTest, RefusesByName) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, ShardedParameters::Create(MakeWorld(2), OddModel()));
  EXPECT_THAT(parameters->Read("a.weigth"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"a.weight\"")));
  EXPECT_THAT(parameters->Write("a.weigth", {}), StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"a.weight\"")));
  EXPECT_THAT(parameters->Write("a.weight", {1.0f, 2.0f}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"a.weight\": 2 values for 91 elements; give the whole")));
  EXPECT_THAT(parameters->Write("a.bias", absl::Span<const float>(nullptr, 1)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"a.bias\": null instead of values")));
  EXPECT_THAT(ShardedParameters::Create(nullptr, OddModel()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no world")));
  EXPECT_THAT(parameters->Initialize(nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no initializer")));
  EXPECT_THAT(ShardedParameters::Create(MakeWorld(2), OddModel(), DType::kInt32),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("master dtype is i32; use f32 or bf16")));
}

TEST(ShardedParametersTest, NamesTheFirstDifferenceOfAnotherModel) {
  const auto build = [](const char* unit, const char* name, Shape shape, DType dtype, bool trainable, bool more) {
    ModelBuilder builder;
    const UnitId id = builder.AddUnit(unit);
    builder.AddParameter(id, {.name = name, .shape = std::move(shape), .dtype = dtype, .trainable = trainable});
    if (more) builder.AddParameter(id, {.name = "more", .shape = {1}});
    return *builder.Build();
  };
  REPRISE_ASSERT_OK_AND_ASSIGN(
      const auto parameters,
      ShardedParameters::Create(MakeWorld(2), build("u", "w", {2, 3}, DType::kBFloat16, true, false)));
  EXPECT_THAT(parameters->CheckSameParameters(build("u", "w", {2, 3}, DType::kBFloat16, true, false)), IsOk());
  const auto expect_difference = [&](const Model& model, const char* words) {
    EXPECT_THAT(parameters->CheckSameParameters(model), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words)));
  };
  expect_difference(build("v", "w", {2, 3}, DType::kBFloat16, true, false), "unit 0 is \"v\" in the model but \"u\"");
  expect_difference(build("u", "x", {2, 3}, DType::kBFloat16, true, false), "parameter 0 is \"x\" of unit \"u\"");
  expect_difference(build("u", "w", {3, 2}, DType::kBFloat16, true, false),
                    "bf16 [3, 2] in the model but \"w\" of unit");
  expect_difference(build("u", "w", {2, 3}, DType::kFloat32, true, false), "f32 [2, 3] in the model");
  expect_difference(build("u", "w", {2, 3}, DType::kBFloat16, false, false), "bf16 [2, 3], frozen in the model");
  expect_difference(build("u", "w", {2, 3}, DType::kBFloat16, true, true), "but missing there");
  ModelBuilder empty;
  expect_difference(*empty.Build(), "unit 0 is missing in the model but \"u\" there");
}

// ---- initial values ----

std::vector<double> Draw(const ShardedParameters::Initializer& initializer, const std::string& name, int64_t first,
                         size_t count) {
  std::vector<float> values(count);
  initializer({.name = name}, first, absl::MakeSpan(values));
  return std::vector<double>(values.begin(), values.end());
}

double MeanProduct(const std::vector<double>& a, const std::vector<double>& b, size_t shift = 0) {
  double sum = 0;
  for (size_t i = 0; i + shift < a.size(); ++i) sum += a[i] * b[i + shift];
  return sum / static_cast<double>(a.size() - shift);
}

TEST(NormalTest, HasTheMomentsOfANormalDistribution) {
  constexpr size_t kCount = 100000;
  std::vector<double> x = Draw(Normal(3, 2.0f), "w", 0, kCount), one(kCount, 1.0), squares;
  for (double& value : x) value /= 2;
  for (const double value : x) squares.push_back(value * value);
  // Five standard deviations of each mean: the variances of x, x^2, x^4 and x[i] x[i + 1] are 1, 2, 96 and 1.
  const double unit = 5 / std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(MeanProduct(x, one), 0, unit);
  EXPECT_NEAR(MeanProduct(x, x), 1, unit * std::sqrt(2.0));
  EXPECT_NEAR(MeanProduct(squares, squares), 3, unit * std::sqrt(96.0));
  EXPECT_NEAR(MeanProduct(x, x, 1), 0, unit);
  EXPECT_NEAR(MeanProduct(x, Draw(Normal(3, 1), "v", 0, kCount)), 0, unit) << "another name is independent";
  EXPECT_NEAR(MeanProduct(x, Draw(Normal(4, 1), "w", 0, kCount)), 0, unit) << "another seed is independent";
}

TEST(NormalTest, IsAFunctionOfTheElement) {
  const auto normal = Normal(7, 1);
  const std::vector<double> whole = Draw(normal, "w", 0, 50);
  for (int64_t first = 0; first < 50; first += 7) {
    const size_t count = std::min<size_t>(7, 50 - first);
    EXPECT_EQ(Draw(normal, "w", first, count),
              std::vector<double>(whole.begin() + first, whole.begin() + first + count));
  }
}

TEST(ConstantTest, IsTheSameForEveryElement) { EXPECT_THAT(Draw(Constant(1.5f), "gain", 3, 10), ::testing::Each(1.5)); }

}  // namespace
}  // namespace reprise
