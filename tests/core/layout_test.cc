#include "reprise/core/layout.h"

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/plan.h"
#include "tests/testing/random_model.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using reprise::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kWorldSizes[] = {1, 2, 3, 4, 5, 8};

// One unit with these parameters, named "p0" and so on.
Model OneUnit(std::vector<ParameterSpec> parameters) {
  ModelBuilder builder;
  const UnitId unit = builder.AddUnit("u");
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].name = absl::StrCat("p", i);
    builder.AddParameter(unit, parameters[i]);
  }
  return *builder.Build();
}

TEST(LayoutTest, ParametersStartAtAlignedElementsAndTheGroupIsPaddedToTheWorld) {
  const Model model = OneUnit({{.shape = {3, 5}}, {.shape = {65}}, {.shape = {}}});
  REPRISE_ASSERT_OK_AND_ASSIGN(const ModelLayout layout, LayOut(model, 3));
  ASSERT_EQ(layout.units.size(), 1);
  EXPECT_THAT(
      layout.units[0].groups,
      ElementsAre(FlatGroup{.parameters = {{ParameterId(0), 0, 15}, {ParameterId(1), 64, 65}, {ParameterId(2), 192, 1}},
                            .num_elements = 384,
                            .shard_elements = 128}));
  EXPECT_THAT(layout.units[0].gathered_offsets, ElementsAre(0));
  EXPECT_EQ(layout.units[0].gathered_bytes, 384 * 2);
  EXPECT_THAT(layout.parameters, ElementsAre(ParameterPlace{0, 0}, ParameterPlace{0, 64}, ParameterPlace{0, 192}));
}

TEST(LayoutTest, GroupsDifferInDTypeReduceDTypeAndTrainabilityInOrderOfFirstParameter) {
  const Model model = OneUnit({{.shape = {1}, .dtype = DType::kFloat32},
                               {.shape = {1}},
                               {.shape = {1}, .trainable = false},
                               {.shape = {1}, .reduce_dtype = DType::kFloat32},
                               {.shape = {1}},
                               {.shape = {1}, .dtype = DType::kFloat32}});
  REPRISE_ASSERT_OK_AND_ASSIGN(const ModelLayout layout, LayOut(model, 1));
  std::vector<int> groups;
  for (const ParameterPlace& place : layout.parameters) groups.push_back(place.group);
  EXPECT_THAT(groups, ElementsAre(0, 1, 2, 3, 1, 0));
  // 128 elements of f32, then 128 of bf16, then twice 64 of bf16; every start is a multiple of 256 bytes.
  EXPECT_THAT(layout.units[0].gathered_offsets, ElementsAre(0, 512, 768, 1024));
  EXPECT_EQ(layout.units[0].gathered_bytes, 1024 + 128);
}

TEST(LayoutTest, EmptyParametersTakeNoRoom) {
  const Model model = OneUnit({{.shape = {0}}, {.shape = {4}}, {.shape = {3, 0}}, {.shape = {5}}, {.shape = {0}}});
  REPRISE_ASSERT_OK_AND_ASSIGN(const ModelLayout layout, LayOut(model, 2));
  EXPECT_EQ(layout.units[0].groups[0].num_elements, 128);
  EXPECT_EQ(layout.parameters[3].first_element, 64);
  EXPECT_THAT(Segments(layout.units[0].groups[0], 0), ElementsAre(ShardSegment{ParameterId(1), 0, 0, 4}));
  EXPECT_THAT(Segments(layout.units[0].groups[0], 1), ElementsAre(ShardSegment{ParameterId(3), 0, 0, 5}));
}

TEST(LayoutTest, AGroupWithoutElementsHasNoPadding) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const ModelLayout layout, LayOut(OneUnit({{.shape = {0, 7}}}), 4));
  ASSERT_EQ(layout.units[0].groups.size(), 1);
  EXPECT_EQ(layout.units[0].groups[0].num_elements, 0);
  EXPECT_EQ(layout.units[0].groups[0].shard_elements, 0);
  EXPECT_EQ(layout.units[0].gathered_bytes, 0);
  EXPECT_THAT(Segments(layout.units[0].groups[0], 3), IsEmpty());
}

TEST(LayoutTest, AUnitWithoutParametersHasNoGroups) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const ModelLayout layout, LayOut(OneUnit({}), 4));
  EXPECT_EQ(layout.units[0], UnitLayout{});
}

TEST(LayoutTest, RanksBeyondTheElementsHoldNothing) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const ModelLayout layout, LayOut(OneUnit({{.shape = {3}}}), 8));
  EXPECT_EQ(layout.units[0].groups[0].shard_elements, kAlignment);
  EXPECT_THAT(Segments(layout.units[0].groups[0], 0), ElementsAre(ShardSegment{ParameterId(0), 0, 0, 3}));
  for (int rank = 1; rank < 8; ++rank) EXPECT_THAT(Segments(layout.units[0].groups[0], rank), IsEmpty());
}

TEST(LayoutTest, SegmentsSplitAParameterWhereShardsMeet) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const ModelLayout layout, LayOut(OneUnit({{.shape = {10}}, {.shape = {100}}}), 2));
  const FlatGroup& group = layout.units[0].groups[0];
  ASSERT_EQ(group.shard_elements, 128);
  EXPECT_THAT(Segments(group, 0),
              ElementsAre(ShardSegment{ParameterId(0), 0, 0, 10}, ShardSegment{ParameterId(1), 64, 0, 64}));
  EXPECT_THAT(Segments(group, 1), ElementsAre(ShardSegment{ParameterId(1), 0, 64, 36}));
}

std::vector<ParameterSpec> OfShapes(const std::vector<Shape>& shapes) {
  std::vector<ParameterSpec> parameters;
  for (const Shape& shape : shapes) parameters.push_back({.shape = shape});
  return parameters;
}

// The founding system's shapes, which it packs by rows: here each of these small parameters begins an alignment, so
// that they lie in their order and a rank's part ends where an alignment does.
TEST(LayoutTest, FoundingShapes) {
  struct Case {
    int world_size;
    std::vector<Shape> shapes;
    int64_t shard_elements;
    std::vector<std::vector<int>> parameters_of_ranks;
  };
  const Case cases[] = {
      {2, {{5, 4}, {2, 6}, {3}}, 2 * kAlignment, {{0, 1}, {2}}},
      {2, {{4, 4}, {1, 6}}, kAlignment, {{0}, {1}}},
      {5, {{2, 6}, {4, 4}, {4, 4}, {1, 2}, {1, 6}}, kAlignment, {{0}, {1}, {2}, {3}, {4}}},
      {2, {{7, 3}, {2, 5}, {7}}, 2 * kAlignment, {{0, 1}, {2}}},
  };
  for (const Case& c : cases) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const ModelLayout layout, LayOut(OneUnit(OfShapes(c.shapes)), c.world_size));
    const FlatGroup& group = layout.units[0].groups[0];
    EXPECT_EQ(group.shard_elements, c.shard_elements);
    EXPECT_EQ(group.num_elements, c.world_size * c.shard_elements);
    for (size_t p = 0; p < c.shapes.size(); ++p) {
      EXPECT_EQ(layout.parameters[p].first_element, static_cast<int64_t>(p) * kAlignment);
    }
    for (int rank = 0; rank < c.world_size; ++rank) {
      std::vector<int> held;
      for (const ShardSegment& segment : Segments(group, rank)) held.push_back(segment.parameter.value());
      EXPECT_EQ(held, c.parameters_of_ranks[rank]) << "rank " << rank << " of " << c.world_size;
    }
  }
}

TEST(LayoutTest, WorldSizeBelowOneIsRefused) {
  EXPECT_THAT(LayOut(OneUnit({}), 0), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("world size is 0")));
  EXPECT_THAT(LayOut(OneUnit({}), -2), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("world size is -2")));
}

TEST(LayoutTest, OverflowingFlatSizeNamesTheUnit) {
  const ParameterSpec huge = {.shape = {int64_t{1} << 55}};
  EXPECT_THAT(LayOut(OneUnit({huge, huge, huge}), 2),
              StatusIs(absl::StatusCode::kResourceExhausted, AllOf(HasSubstr("\"u\""), HasSubstr("world size 2"))));
  // Padding alone: the largest world on one element is fine.
  REPRISE_ASSERT_OK_AND_ASSIGN(const ModelLayout layout,
                               LayOut(OneUnit({{.shape = {1}}}), std::numeric_limits<int>::max()));
  EXPECT_EQ(layout.units[0].groups[0].num_elements, std::numeric_limits<int>::max() * kAlignment);
}

// What all ranks hold of each parameter is each element once.
void ExpectShardsTileParameters(const FlatGroup& group, int world_size) {
  std::map<int32_t, int64_t> next;  // by parameter: elements met so far, in rank order
  for (int rank = 0; rank < world_size; ++rank) {
    int64_t shard_end = 0;
    for (const ShardSegment& segment : Segments(group, rank)) {
      EXPECT_GE(segment.num_elements, 1);
      EXPECT_GE(segment.shard_element, shard_end) << "segments of one shard overlap";
      shard_end = segment.shard_element + segment.num_elements;
      EXPECT_EQ(segment.parameter_element, next[segment.parameter.value()]) << "a gap or a repeat";
      next[segment.parameter.value()] += segment.num_elements;
      const auto placed = std::find_if(group.parameters.begin(), group.parameters.end(),
                                       [&](const PlacedParameter& p) { return p.parameter == segment.parameter; });
      ASSERT_NE(placed, group.parameters.end());
      EXPECT_EQ(placed->first_element + segment.parameter_element, rank * group.shard_elements + segment.shard_element);
    }
    EXPECT_LE(shard_end, group.shard_elements);
  }
  for (const PlacedParameter& placed : group.parameters) {
    EXPECT_EQ(next[placed.parameter.value()], placed.num_elements);
  }
}

void ExpectGroupIsAlignedAndTight(const FlatGroup& group, int world_size) {
  int64_t elements = 0, end = 0;
  for (const PlacedParameter& placed : group.parameters) {
    EXPECT_EQ(placed.first_element % kAlignment, 0);
    EXPECT_GE(placed.first_element, end) << "parameters overlap";
    end = placed.first_element + placed.num_elements;
    elements += placed.num_elements;
  }
  EXPECT_GE(group.num_elements, end);
  EXPECT_EQ(group.num_elements % (world_size * kAlignment), 0);
  EXPECT_EQ(group.shard_elements * world_size, group.num_elements);
  EXPECT_LT(group.num_elements - elements,
            world_size * kAlignment + static_cast<int64_t>(group.parameters.size()) * kAlignment);
}

TEST(LayoutPropertyTest, ShardsOfAllRanksTileEveryParameterOnce) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Model model = reprise::testing::RandomModel(seed, {.max_bytes = 4096});
    for (int world_size : kWorldSizes) {
      SCOPED_TRACE(absl::StrCat("seed ", seed, ", world size ", world_size));
      REPRISE_ASSERT_OK_AND_ASSIGN(const ModelLayout layout, LayOut(model, world_size));
      ASSERT_EQ(layout.units.size(), model.units().size());
      size_t num_placed = 0;
      for (const UnitLayout& unit : layout.units) {
        for (const FlatGroup& group : unit.groups) {
          ExpectShardsTileParameters(group, world_size);
          ExpectGroupIsAlignedAndTight(group, world_size);
          num_placed += group.parameters.size();
        }
      }
      EXPECT_EQ(num_placed, model.parameters().size());
    }
  }
}

TEST(LayoutPropertyTest, PlacesAgreeWithGroupsAndGroupsDoNotOverlapInAGatheredCopy) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const Model model = reprise::testing::RandomModel(seed, {.max_bytes = 4096});
    REPRISE_ASSERT_OK_AND_ASSIGN(const ModelLayout layout, LayOut(model, 3));
    for (const UnitLayout& unit : layout.units) {
      int64_t end = 0;
      ASSERT_EQ(unit.gathered_offsets.size(), unit.groups.size());
      for (size_t g = 0; g < unit.groups.size(); ++g) {
        EXPECT_EQ(unit.gathered_offsets[g] % kBufferAlignment, 0);
        EXPECT_GE(unit.gathered_offsets[g], end);
        EXPECT_LT(unit.gathered_offsets[g] - end, kBufferAlignment);
        end = unit.gathered_offsets[g] + unit.groups[g].num_elements * SizeOf(unit.groups[g].dtype);
        for (const PlacedParameter& placed : unit.groups[g].parameters) {
          const ParameterPlace expected = {static_cast<int>(g), placed.first_element};
          EXPECT_EQ(layout.parameters[placed.parameter.value()], expected);
          const ParameterSpec& spec = model.parameter(placed.parameter).spec;
          EXPECT_EQ(placed.num_elements, NumElements(spec.shape));
          EXPECT_EQ(spec.dtype, unit.groups[g].dtype);
          EXPECT_EQ(spec.reduce_dtype, unit.groups[g].reduce_dtype);
          EXPECT_EQ(spec.trainable, unit.groups[g].trainable);
        }
      }
      EXPECT_EQ(unit.gathered_bytes, end);
    }
  }
}

}  // namespace
}  // namespace reprise
