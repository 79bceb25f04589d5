#include "reprise/kernels/accumulate.h"

#include <algorithm>

#include "reprise/core/norm_ranges.h"
#include "tests/kernels/kernel_testing.h"

namespace reprise::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Keeps the work, to run it once per replay.
class RecordingQueue : public HostQueue {
 public:
  void Enqueue(std::function<void()> work) override { work_.push_back(std::move(work)); }
  void Replay() {
    for (const auto& work : work_) work();
  }

 private:
  std::vector<std::function<void()>> work_;
};

// An accumulator with its partial norms, NaN until they are written.
struct Sum {
  explicit Sum(int64_t elements, float fill = kNan)
      : accumulator({elements}, fill), partials(NormRanges(elements), std::nan("")) {}
  // Arguments for all elements as one segment, without parts.
  template <class W>
  ReduceAccumulateArguments Arguments(const ControlBlock* control, const Tensor<W>& parts, int num_parts = 1) {
    return {.control = control,
            .reduce_dtype = DTypeOf<W>::value,
            .parts = parts.data.data(),
            .num_parts = num_parts,
            .elements = accumulator.size(),
            .accumulator = accumulator.data.data(),
            .segments = {{0, accumulator.size()}},
            .norm_partials = partials.data()};
  }

  Tensor<float> accumulator;
  std::vector<double> partials;
};

TEST(ReduceAccumulateTest, AssignsInTheFirstMicrobatchAndAddsInTheOthers) {
  ControlBlock control;
  const Tensor<float> parts({3}, 1.5f);
  Sum sum(3);
  RecordingQueue queue;
  ASSERT_EQ(ReduceAccumulate(Stream(&queue), sum.Arguments(&control, parts)), absl::OkStatus());
  queue.Replay();
  EXPECT_THAT(sum.accumulator.data, testing::Each(1.5f));
  control.microbatch = 1;
  queue.Replay();
  EXPECT_THAT(sum.accumulator.data, testing::Each(3.0f));
  control.microbatch = 0;  // the next step: the old sum is not read
  queue.Replay();
  EXPECT_THAT(sum.accumulator.data, testing::Each(1.5f));
}

TEST(ReduceAccumulateTest, CountsThePositionFromTheReplaysFirstMicrobatch) {
  for (const int position : {-1, 0, 1}) {
    for (const int64_t microbatch : {0, 1, 2}) {
      const ControlBlock control = {.microbatch = microbatch};
      const Tensor<float> parts({1}, 2);
      Sum sum(1, 5);
      ReduceAccumulateArguments arguments = sum.Arguments(&control, parts);
      arguments.position = position;
      ASSERT_EQ(ReduceAccumulate(HostStream(), arguments), absl::OkStatus());
      EXPECT_EQ(sum.accumulator.data[0], microbatch + position == 0 ? 2 : 7) << microbatch << " " << position;
    }
  }
}

TEST(ReduceAccumulateTest, AlwaysAssignNeedsNoControlBlock) {
  const Tensor<float> parts({1}, 2);
  Sum sum(1);
  ReduceAccumulateArguments arguments = sum.Arguments(nullptr, parts);
  arguments.mode = AccumulateMode::kAlwaysAssign;
  ASSERT_EQ(ReduceAccumulate(HostStream(), arguments), absl::OkStatus());
  EXPECT_EQ(sum.accumulator.data[0], 2);
  EXPECT_EQ(sum.partials[0], 4);
}

TEST(ReduceAccumulateTest, SumsPartsInRankOrderInFloat) {
  // In any other order 1 would be lost against 2^24, or kept.
  Tensor<float> parts({4});
  parts.data = {0x1p24f, 1, -0x1p24f, 1};
  const ControlBlock control;
  Sum sum(1);
  ASSERT_EQ(ReduceAccumulate(HostStream(), sum.Arguments(&control, parts, 4)), absl::OkStatus());
  EXPECT_EQ(sum.accumulator.data[0], ((0x1p24f + 1) + -0x1p24f) + 1);
}

// Padding is NaN, in the parts as in the accumulator.
TEST(ReduceAccumulateTest, TouchesSegmentsOnly) {
  constexpr int64_t kElements = 5000;
  const std::vector<Segment> segments = {{1, 3}, {64, 1}, {70, 0}, {100, 4000}};
  for (const WriteMode mode : {WriteMode::kAssign, WriteMode::kAdd}) {
    Tensor<BFloat16> parts({3, kElements});
    Sum sum(kElements);
    for (const Segment& segment : segments) {
      for (int64_t i = segment.first; i < segment.first + segment.count; ++i) {
        for (int64_t part = 0; part < 3; ++part) {
          parts.data[part * kElements + i] = BFloat16(static_cast<float>(i % 64 + part));
        }
        sum.accumulator.data[i] = 10;
      }
    }
    const ControlBlock control =
        mode == WriteMode::kAssign ? ControlBlock{} : ControlBlock{.microbatches = 2, .microbatch = 1};
    ReduceAccumulateArguments arguments = sum.Arguments(&control, parts, 3);
    arguments.segments = segments;
    ASSERT_EQ(ReduceAccumulate(HostStream(), arguments), absl::OkStatus());
    double squares = 0;
    for (int64_t i = 0; i < kElements; ++i) {
      const bool touched = std::any_of(segments.begin(), segments.end(),
                                       [&](const Segment& s) { return i >= s.first && i < s.first + s.count; });
      const float value = sum.accumulator.data[i];
      ASSERT_EQ(std::isnan(value), !touched) << i;
      if (!touched) continue;
      ASSERT_EQ(value, 3 * (i % 64) + 3 + (mode == WriteMode::kAdd ? 10 : 0)) << i;
      squares += static_cast<double>(value) * value;
    }
    EXPECT_THAT(sum.partials, testing::ElementsAre(squares)) << "whole numbers, whose sum is exact";
  }
}

// ---- partial norms ----

TEST(ReduceAccumulateTest, OnlyTheStepsLastMicrobatchWritesTheNorm) {
  for (const int microbatches : {1, 2, 3}) {
    for (const int position : {-1, 0, 1}) {
      for (const int64_t microbatch : {0, 1, 2}) {
        const ControlBlock control = {.microbatches = microbatches, .microbatch = microbatch};
        const Tensor<float> parts({2}, 2);
        Sum sum(2, 1);
        ReduceAccumulateArguments arguments = sum.Arguments(&control, parts);
        arguments.position = position;
        ASSERT_EQ(ReduceAccumulate(HostStream(), arguments), absl::OkStatus());
        if (microbatch + position == microbatches - 1) {
          EXPECT_EQ(sum.partials[0], microbatches == 1 ? 8 : 18) << "of the new values";
        } else {
          EXPECT_TRUE(std::isnan(sum.partials[0])) << microbatch << " " << position << " of " << microbatches;
        }
      }
    }
  }
}

// |error| <= count 2^-53 of a sum of `count` positive terms, in any order.
TEST(ReduceAccumulateTest, EachRangeHasTheNormOfItsSegments) {
  constexpr int64_t kElements = 3 * kNormTile + 100;
  const std::vector<std::vector<Segment>> lists = {{},
                                                   {{0, kElements}},
                                                   {{0, kNormTile}, {kNormTile, kNormTile}, {2 * kNormTile, kNormTile}},
                                                   {{0, 0}, {3, 5}, {kNormTile - 1, 2}, {kNormTile + 9, 2 * kNormTile}},
                                                   {{2 * kNormTile + 1, kNormTile - 2}, {kElements - 1, 1}}};
  for (const std::vector<Segment>& segments : lists) {
    const ControlBlock control;
    Tensor<float> parts({kElements});
    const Tensor<float> random = Random<float>({kElements}, 1, 100);
    std::vector<double> want(4), count(4);
    for (const Segment& segment : segments) {
      for (int64_t i = segment.first; i < segment.first + segment.count; ++i) {
        parts.data[i] = random.data[i];
        want[i / kNormTile] += static_cast<double>(random.data[i]) * random.data[i];
        ++count[i / kNormTile];
      }
    }
    Sum sum(kElements);
    ReduceAccumulateArguments arguments = sum.Arguments(&control, parts);
    arguments.segments = segments;
    ASSERT_EQ(ReduceAccumulate(HostStream(), arguments), absl::OkStatus());
    ASSERT_EQ(sum.partials.size(), want.size());
    for (size_t range = 0; range < want.size(); ++range) {
      EXPECT_NEAR(sum.partials[range], want[range], 2 * count[range] * 0x1p-53 * want[range]) << "range " << range;
    }
  }
}

TEST(ReduceAccumulateTest, TheNormIsFiniteIfAndOnlyIfAllValuesAre) {
  constexpr int64_t kElements = kNormTile + 1;
  const ControlBlock control;
  const float largest = std::numeric_limits<float>::max(), infinity = std::numeric_limits<float>::infinity();
  Tensor<float> parts({kElements}, largest);
  Sum sum(kElements);
  ASSERT_EQ(ReduceAccumulate(HostStream(), sum.Arguments(&control, parts)), absl::OkStatus());
  const double square = static_cast<double>(largest) * largest;
  EXPECT_NEAR(sum.partials[0], kNormTile * square, kNormTile * 0x1p-53 * (kNormTile * square));
  EXPECT_EQ(sum.partials[1], square);
  for (const float value : {kNan, infinity, -infinity}) {
    for (const int64_t i : {int64_t{0}, int64_t{5000}, kNormTile}) {
      Tensor<float> broken = parts;
      broken.data[i] = value;
      ASSERT_EQ(ReduceAccumulate(HostStream(), sum.Arguments(&control, broken)), absl::OkStatus());
      EXPECT_EQ(std::isfinite(sum.partials[0]), i == kNormTile) << value << " at " << i;
      EXPECT_EQ(std::isfinite(sum.partials[1]), i != kNormTile) << value << " at " << i;
    }
  }
}

TEST(NormRangesTest, AreWholeTilesAndFew) {
  EXPECT_EQ(NormRanges(0), 0);
  EXPECT_EQ(NormRanges(1), 1);
  EXPECT_EQ(NormRanges(kNormTile), 1);
  EXPECT_EQ(NormRanges(kNormTile + 1), 2);
  const int64_t largest = kMaxNormRanges * kNormTile;  // with ranges of one tile
  EXPECT_EQ(NormRangeElements(largest), kNormTile);
  EXPECT_EQ(NormRanges(largest), kMaxNormRanges);
  EXPECT_EQ(NormRangeElements(largest + 1), 2 * kNormTile);
  EXPECT_EQ(NormRanges(largest + 1), kMaxNormRanges / 2 + 1);
  EXPECT_EQ(NormRanges(1000 * largest), kMaxNormRanges);
}

// Sums in float depend on the order of their terms, so that equal bits say that the order is the same.
TEST(ReduceAccumulateTest, APartByItselfTakesItsPlaceInTheOrder) {
  constexpr int64_t kElements = 3000;
  ControlBlock control;
  for (const int num_parts : {1, 2, 3, 8}) {
    const Tensor<BFloat16> all = Random<BFloat16>({num_parts, kElements}, static_cast<uint64_t>(num_parts));
    Sum want(kElements);
    ASSERT_EQ(ReduceAccumulate(HostStream(), want.Arguments(&control, all, num_parts)), absl::OkStatus());
    for (int place = 0; place < num_parts; ++place) {
      const auto own = all.data.begin() + place * kElements;
      Tensor<BFloat16> others({num_parts - 1, kElements});
      std::copy(own + kElements, all.data.end(), std::copy(all.data.begin(), own, others.data.begin()));
      const std::vector<BFloat16> alone(own, own + kElements);
      Sum sum(kElements);
      ReduceAccumulateArguments arguments = sum.Arguments(&control, others, num_parts - 1);
      arguments.own = alone.data();
      arguments.own_place = place;
      ASSERT_EQ(ReduceAccumulate(HostStream(), arguments), absl::OkStatus());
      EXPECT_EQ(sum.accumulator.data, want.accumulator.data) << place << " of " << num_parts;
      EXPECT_EQ(sum.partials, want.partials) << place << " of " << num_parts;
    }
  }
}

TEST(ReduceAccumulateTest, RefusesArgumentsThatDoNotFit) {
  const ControlBlock control;
  const Tensor<float> parts({14}, 1);
  Sum sum(7);
  const ReduceAccumulateArguments valid = sum.Arguments(&control, parts, 2);
  const auto refuses = [&](const std::function<void(ReduceAccumulateArguments&)>& change,
                           const std::vector<std::string>& words) {
    ReduceAccumulateArguments arguments = valid;
    change(arguments);
    ExpectInvalid(ReduceAccumulate(HostStream(), arguments), words);
  };
  ASSERT_EQ(ReduceAccumulate(HostStream(), valid), absl::OkStatus());
  refuses([](auto& a) { a.elements = 6; }, {"ReduceAccumulate", "elements: 6", "at least 7"});
  refuses([](auto& a) { a.position = -2; }, {"position: -2", "at least -1"});
  refuses([](auto& a) { a.num_parts = 0; }, {"num_parts: 0"});
  refuses([&](auto& a) { a.own = parts.data.data(), a.own_place = 3; }, {"num_parts: 2", "at least 3"});
  refuses([&](auto& a) { a.own = parts.data.data(), a.own_place = -1; }, {"own_place: -1"});
  refuses([](auto& a) { a.control = nullptr; }, {"control is empty"});
  refuses([](auto& a) { a.reduce_dtype = DType::kInt32; }, {"reduce_dtype"});
  refuses([](auto& a) { a.norm_partials = nullptr; }, {"norm_partials is empty"});
  refuses([](auto& a) { a.segments = {{4, 2}, {0, 2}}; }, {"first element of a segment: 0", "at least 6"});
}

}  // namespace
}  // namespace reprise::kernels
