#include "reprise/kernels/accumulate.h"

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

TEST(ReduceAccumulateTest, AssignsInTheFirstMicrobatchAndAddsInTheOthers) {
  ControlBlock control;
  const Tensor<float> parts({3}, 1.5f);
  Tensor<float> accumulator({3}, kNan);
  RecordingQueue queue;
  ASSERT_EQ(ReduceAccumulate(Stream(&queue), {.control = &control,
                                              .wire_dtype = DType::kFloat32,
                                              .parts = parts.data.data(),
                                              .accumulator = accumulator.data.data(),
                                              .segments = {{0, 3}}}),
            absl::OkStatus());
  queue.Replay();
  EXPECT_THAT(accumulator.data, testing::Each(1.5f));
  control.microbatch = 1;
  queue.Replay();
  EXPECT_THAT(accumulator.data, testing::Each(3.0f));
  control.microbatch = 0;  // the next step: the old sum is not read
  queue.Replay();
  EXPECT_THAT(accumulator.data, testing::Each(1.5f));
}

TEST(ReduceAccumulateTest, CountsThePositionFromTheReplaysFirstMicrobatch) {
  for (const int position : {-1, 0, 1}) {
    for (const int64_t microbatch : {0, 1, 2}) {
      const ControlBlock control = {.microbatch = microbatch};
      const Tensor<float> parts({1}, 2);
      Tensor<float> accumulator({1}, 5);
      ASSERT_EQ(ReduceAccumulate(HostStream(), {.control = &control,
                                                .position = position,
                                                .wire_dtype = DType::kFloat32,
                                                .parts = parts.data.data(),
                                                .accumulator = accumulator.data.data(),
                                                .segments = {{0, 1}}}),
                absl::OkStatus());
      EXPECT_EQ(accumulator.data[0], microbatch + position == 0 ? 2 : 7) << microbatch << " " << position;
    }
  }
}

TEST(ReduceAccumulateTest, AlwaysAssignNeedsNoControlBlock) {
  const Tensor<float> parts({1}, 2);
  Tensor<float> accumulator({1}, kNan);
  ASSERT_EQ(ReduceAccumulate(HostStream(), {.mode = AccumulateMode::kAlwaysAssign,
                                            .wire_dtype = DType::kFloat32,
                                            .parts = parts.data.data(),
                                            .accumulator = accumulator.data.data(),
                                            .segments = {{0, 1}}}),
            absl::OkStatus());
  EXPECT_EQ(accumulator.data[0], 2);
}

TEST(ReduceAccumulateTest, SumsPartsInRankOrderInFloat) {
  // In any other order 1 would be lost against 2^24, or kept.
  const std::vector<float> parts = {0x1p24f, 1, -0x1p24f, 1};
  Tensor<float> accumulator({1}, kNan);
  ControlBlock control;
  ASSERT_EQ(ReduceAccumulate(HostStream(), {.control = &control,
                                            .wire_dtype = DType::kFloat32,
                                            .parts = parts.data(),
                                            .num_parts = 4,
                                            .part_stride = 1,
                                            .accumulator = accumulator.data.data(),
                                            .segments = {{0, 1}}}),
            absl::OkStatus());
  EXPECT_EQ(accumulator.data[0], ((0x1p24f + 1) + -0x1p24f) + 1);
}

TEST(ReduceAccumulateTest, TouchesSegmentsOnly) {
  constexpr int64_t kStride = 5000;
  const std::vector<Segment> segments = {{1, 3}, {64, 1}, {70, 0}, {100, 4000}};
  for (const WriteMode mode : {WriteMode::kAssign, WriteMode::kAdd}) {
    Tensor<BFloat16> parts({3, kStride});
    Tensor<float> accumulator({kStride});
    for (const Segment& segment : segments) {
      for (int64_t i = segment.first; i < segment.first + segment.count; ++i) {
        for (int64_t part = 0; part < 3; ++part) {
          parts.data[part * kStride + i] = BFloat16(static_cast<float>(i % 64 + part));
        }
        accumulator.data[i] = 10;
      }
    }
    const ControlBlock control = {.microbatch = mode == WriteMode::kAssign ? 0 : 1};
    ASSERT_EQ(ReduceAccumulate(HostStream(), {.control = &control,
                                              .parts = parts.data.data(),
                                              .num_parts = 3,
                                              .part_stride = kStride,
                                              .accumulator = accumulator.data.data(),
                                              .segments = segments}),
              absl::OkStatus());
    for (int64_t i = 0; i < kStride; ++i) {
      const bool touched = std::any_of(segments.begin(), segments.end(),
                                       [&](const Segment& s) { return i >= s.first && i < s.first + s.count; });
      ASSERT_EQ(std::isnan(accumulator.data[i]), !touched) << i;
      if (touched) {
        ASSERT_EQ(accumulator.data[i], 3 * (i % 64) + 3 + (mode == WriteMode::kAdd ? 10 : 0)) << i;
      }
    }
  }
}

TEST(ReduceAccumulateTest, RefusesArgumentsThatDoNotFit) {
  const ControlBlock control;
  float value = 0;
  ReduceAccumulateArguments arguments = {
      .control = &control, .parts = &value, .accumulator = &value, .segments = {{0, 7}}};
  arguments.num_parts = 2;
  arguments.part_stride = 6;
  ExpectInvalid(ReduceAccumulate(HostStream(), arguments), {"ReduceAccumulate", "part_stride: 6", "at least 7"});
  arguments.num_parts = 0;
  ExpectInvalid(ReduceAccumulate(HostStream(), arguments), {"num_parts: 0"});
  arguments.num_parts = 1;
  arguments.control = nullptr;
  ExpectInvalid(ReduceAccumulate(HostStream(), arguments), {"control is empty"});
  arguments.control = &control;
  arguments.wire_dtype = DType::kInt32;
  ExpectInvalid(ReduceAccumulate(HostStream(), arguments), {"wire_dtype"});
}

}  // namespace
}  // namespace reprise::kernels
