#include "tests/testing/random_model.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "core/planner/model_uses.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using reprise::testing::IsOk;
using reprise::testing::RandomModel;

constexpr uint64_t kSeeds = 300;

TEST(RandomModelTest, EqualSeedsGiveEqualModels) {
  EXPECT_EQ(RandomModel(5), RandomModel(5));
  EXPECT_FALSE(RandomModel(5) == RandomModel(6));
}

TEST(RandomModelTest, EveryModelCanBeTrained) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_THAT(internal::TrainingUses(RandomModel(seed)), IsOk()) << "seed " << seed;
  }
}

TEST(RandomModelTest, OptionsBoundUnitsAndSizes) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Model model = RandomModel(seed, {.max_units = 3, .max_bytes = 100});
    EXPECT_LE(model.units().size(), 3);
    for (const Parameter& p : model.parameters()) {
      EXPECT_LE(NumElements(p.spec.shape) * SizeOf(p.spec.dtype), 100);
    }
    for (const Tensor& t : model.tensors()) EXPECT_LE(NumElements(t.spec.shape) * SizeOf(t.spec.dtype), 100);
  }
}

// Which of the promised features a model has.
std::set<std::string> Features(const Model& model) {
  std::set<std::string> features;
  const auto note = [&](bool has, const char* feature) {
    if (has) features.insert(feature);
  };
  UnitId last_unit(0);
  for (const Parameter& p : model.parameters()) {
    note(!p.spec.trainable, "frozen");
    note(NumElements(p.spec.shape) == 1, "one element");
    note(NumElements(p.spec.shape) == 0, "no element");
    note(NumElements(p.spec.shape) % 2 == 1 && NumElements(p.spec.shape) > 1, "odd");
    note(p.spec.reduce_dtype.has_value(), "reduce_dtype");
    note(p.unit < last_unit, "not in unit order");
    note(p.spec.dtype != model.parameter(model.unit(p.unit).parameters[0]).spec.dtype, "mixed dtypes");
    last_unit = p.unit;
  }
  std::map<UnitId, int> namings;
  std::map<TensorId, int> writers;
  for (size_t c = 0; c < model.calls().size(); ++c) {
    const CallSpec& call = model.calls()[c];
    for (UnitId unit : call.units) note(++namings[unit] == 2, "repeated unit");
    note(!call.parameters.empty(), "tied");
    note(call.units.empty() && call.forward_only_units.empty() && call.name != "loss", "no unit");
    note(call.units.size() + call.forward_only_units.size() >= 2, "several units");
    note(!call.forward_only_units.empty(), "forward only");
    note(call.recompute, "recompute");
    note(call.scratch_bytes > 0, "scratch");
    note(call.inputs.size() >= 2, "several inputs");
    for (TensorId t : call.outputs) writers[t] = static_cast<int>(c);
    for (TensorId t : call.inputs) {
      note(writers.count(t) > 0 && static_cast<int>(c) - writers[t] >= 3, "far residual");
      note(!IsFloatingPoint(model.tensor(t).spec.dtype), "integer input");
      note(model.tensor(t).keep_gradient, "kept gradient");
    }
    for (TensorId t : call.saved) {
      const bool named = std::count(call.inputs.begin(), call.inputs.end(), t) +
                             std::count(call.outputs.begin(), call.outputs.end(), t) >
                         0;
      note(!named, "private");
    }
  }
  return features;
}

TEST(RandomModelTest, TheSeedsCoverEveryPromisedFeature) {
  std::map<std::string, int> counts;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (const std::string& feature : Features(RandomModel(seed))) ++counts[feature];
  }
  for (const char* feature :
       {"frozen", "one element", "no element", "odd", "reduce_dtype", "not in unit order", "mixed dtypes",
        "repeated unit", "tied", "no unit", "several units", "forward only", "recompute", "scratch", "several inputs",
        "far residual", "integer input", "kept gradient", "private"}) {
    EXPECT_GE(counts[feature], kSeeds / 20) << feature;
  }
}

}  // namespace
}  // namespace reprise
