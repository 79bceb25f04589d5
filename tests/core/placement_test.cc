#include "core/planner/memory/placement.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/planner/memory/first_fit.h"
#include "core/planner/memory/layered_fit.h"
#include "core/planner/memory/skyline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/random_model.h"

namespace reprise::internal {
namespace {

using ::reprise::testing::Random;

// A life on one lane.
Span Live(int32_t begin, int32_t end) { return {begin, 0, {end, -1, -1, -1}}; }

Item MakeItem(int64_t bytes, Span span) {
  Item item;
  item.bytes = bytes;
  item.spans.push_back(span);
  return item;
}

// No two items that interfere share a byte, and all end within the placement's bytes.
void ExpectValid(const std::vector<Item>& items, const Placement& placement) {
  ASSERT_EQ(placement.offsets.size(), items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    EXPECT_GE(placement.offsets[i], 0);
    EXPECT_LE(placement.offsets[i] + items[i].bytes, placement.num_bytes);
    for (size_t j = 0; j < i; ++j) {
      const bool apart = placement.offsets[i] + items[i].bytes <= placement.offsets[j] ||
                         placement.offsets[j] + items[j].bytes <= placement.offsets[i];
      EXPECT_TRUE(apart || !Interfere(items[i], items[j])) << "items " << j << " and " << i;
    }
  }
}

// Several lanes begin in turns; each life outlasts a different number of points of each.
std::vector<Item> RandomItems(Random& random, int32_t num_points) {
  std::vector<int> lanes;
  for (int32_t p = 0; p < num_points; ++p) lanes.push_back(static_cast<int>(random.Below(3)));
  const auto span = [&](int32_t begin) {
    Span result = {begin, lanes[begin], {-1, -1, -1, -1}};
    for (int lane = 0; lane < kNumLanes; ++lane) {
      const int32_t last = std::min<int32_t>(num_points - 1, begin + static_cast<int32_t>(random.Size(num_points)) - 1);
      for (int32_t p = lane == result.lane ? begin : 0; p <= last; ++p) {
        if (lanes[p] == lane) result.until[lane] = p;
      }
    }
    return result;
  };
  std::vector<Item> items;
  for (int32_t p = 0; p < num_points; ++p) {
    for (int64_t count = random.Below(3); count > 0; --count) items.push_back(MakeItem(random.Size(100), span(p)));
  }
  for (Item& item : items) {
    const int32_t next = item.spans.front().end() + 1;
    if (random.Chance(20) && next < num_points) item.spans.push_back(span(next));
  }
  return items;
}

TEST(SpanTest, LivesMeetUnlessTheLaterOneBeginsAfterTheOtherOnItsOwnLane) {
  const Span early = {0, 0, {2, 5, -1, -1}};
  EXPECT_TRUE(Interfere(early, Span{2, 0, {2, -1, -1, -1}}));
  EXPECT_FALSE(Interfere(early, Span{4, 0, {4, -1, -1, -1}}));
  EXPECT_TRUE(Interfere(early, Span{5, 1, {-1, 5, -1, -1}}));
  EXPECT_TRUE(Interfere(Span{5, 1, {-1, 5, -1, -1}}, early));
  EXPECT_FALSE(Interfere(early, Span{3, 2, {-1, -1, 3, -1}}));
  EXPECT_EQ(early.end(), 5);
}

TEST(SkylineTest, AgreesWithAnArrayOfHeights) {
  for (const int32_t num_points : {1, 2, 7, 16, 33}) {
    Random random(num_points);
    Skyline skyline(num_points);
    std::vector<int64_t> heights(num_points, 0);
    for (int i = 0; i < 200; ++i) {
      const int32_t begin = static_cast<int32_t>(random.Below(num_points));
      const int32_t end = begin + static_cast<int32_t>(random.Below(num_points - begin));
      EXPECT_EQ(skyline.Highest({begin, end}), *std::max_element(heights.begin() + begin, heights.begin() + end + 1));
      const int64_t height = random.Below(1000);
      skyline.Raise({begin, end}, height);
      for (int32_t p = begin; p <= end; ++p) heights[p] = std::max(heights[p], height);
    }
  }
}

TEST(PlaceTest, NestedItemsFormAStackWithShortOnesOnTop) {
  std::vector<Item> items;
  constexpr int32_t kDepth = 500;
  for (int32_t i = 0; i < kDepth; ++i) {
    items.push_back(MakeItem(10, Live(i, 2 * kDepth - 1 - i)));
    items.push_back(MakeItem(7, Live(i, i + 1)));
  }
  const Placement placement = Place(items, 2 * kDepth, 0);
  ExpectValid(items, placement);
  EXPECT_EQ(placement.num_bytes, kDepth * 10 + 2 * 7);
}

TEST(PlaceTest, EqualItemsInAChainTakeTheBytesOfThoseThatOverlap) {
  std::vector<Item> items;
  constexpr int32_t kPoints = 1000, kOverlap = 300;
  for (int32_t i = 0; i < kPoints; ++i) items.push_back(MakeItem(3, Live(i, std::min(i + kOverlap, kPoints) - 1)));
  const Placement placement = Place(items, kPoints, 0);
  ExpectValid(items, placement);
  EXPECT_EQ(placement.num_bytes, 3 * kOverlap);
}

TEST(PlaceTest, ItemWithSeveralSpansHasOneOffsetThatIsFreeInAllOfThem) {
  std::vector<Item> items = {MakeItem(5, Live(0, 1)), MakeItem(4, Live(0, 9)), MakeItem(5, Live(2, 7))};
  items[0].spans.push_back(Live(8, 9));
  const Placement placement = Place(items, 10, 0);
  ExpectValid(items, placement);
  EXPECT_EQ(placement.num_bytes, 9);
}

TEST(PlaceTest, ItemsThatMeetNeverShareBytes) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::vector<Item> items = RandomItems(random, 1 + static_cast<int32_t>(random.Below(40)));
    ExpectValid(items, Place(items, 40, 0));
  }
}

TEST(LayeredFitTest, ManyItemsLiveAtOnceStayNearTheirSum) {
  constexpr int32_t kPoints = 20000, kLongest = 1000;
  Random random(1);
  std::vector<IntervalItem> items(kPoints);
  std::vector<int64_t> live(kPoints, 0);
  for (int32_t i = 0; i < kPoints; ++i) {
    const int32_t end = std::min<int32_t>(kPoints - 1, i + static_cast<int32_t>(random.Below(kLongest)));
    items[i].bytes = 1 + random.Below(100);
    items[i].intervals.push_back({i, end});
    for (int32_t p = i; p <= end; ++p) live[p] += items[i].bytes;
  }
  const int64_t most = *std::max_element(live.begin(), live.end());
  // First fit of many sizes with random ends; measured: 1.13.
  EXPECT_LE(PlaceInLayers(items, kPoints, kPoints).num_bytes, most + most / 4);
}

TEST(FirstFitTest, FindsABetterOrderAndStopsWhenThatIsEnough) {
  // In order of begin the small item takes the bottom, so that the large one cannot go where both early items were.
  const std::vector<Item> items = {MakeItem(1, Live(0, 0)), MakeItem(1, Live(0, 2)), MakeItem(2, Live(2, 3)),
                                   MakeItem(1, Live(3, 3))};
  Placement best = {{0, 1, 2, 0}, 4};
  ImproveByFirstFit(items, 4, best);
  EXPECT_EQ(best.num_bytes, 4);
  EXPECT_EQ(best.offsets[2], 2);
  ImproveByFirstFit(items, 3, best);
  ExpectValid(items, best);
  EXPECT_EQ(best.num_bytes, 3);
}

}  // namespace
}  // namespace reprise::internal
