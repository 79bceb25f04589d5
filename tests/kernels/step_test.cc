#include "reprise/kernels/step.h"

#include "tests/kernels/kernel_testing.h"

namespace reprise::kernels {
namespace {

TEST(NextMicrobatchTest, MovesTheCountersToTheNextReplay) {
  ControlBlock control = {.microbatch = 100,
                          .next_microbatch = 4,
                          .input = 100,
                          .next_input = 9,
                          .random_offset = 100,
                          .next_random_offset = 11};
  ASSERT_EQ(NextMicrobatch(HostStream(), &control, 2), absl::OkStatus());
  EXPECT_EQ(control.microbatch, 4);
  EXPECT_EQ(control.next_microbatch, 6);
  EXPECT_EQ(control.input, 9);
  EXPECT_EQ(control.next_input, 11);
  EXPECT_EQ(control.random_offset, 11u);
  EXPECT_EQ(control.next_random_offset, 13u);
  ExpectInvalid(NextMicrobatch(HostStream(), &control, 0), {"NextMicrobatch", "count: 0", "at least 1"});
}

TEST(StageInputTest, CopiesTheSlotOfTheMicrobatch) {
  constexpr int64_t kStride = 8, kBytes = 5;
  std::vector<std::byte> staging(3 * kStride);
  for (size_t i = 0; i < staging.size(); ++i) staging[i] = std::byte(i);
  for (int64_t input = 0; input < 5; ++input) {
    for (int position = 0; position < 4; ++position) {
      const ControlBlock control = {.input = input};
      std::vector<std::byte> destination(kStride, std::byte(255));
      ASSERT_EQ(StageInput(HostStream(), {.control = &control,
                                          .position = position,
                                          .slots = 3,
                                          .staging = staging.data(),
                                          .slot_stride = kStride,
                                          .num_bytes = kBytes,
                                          .destination = destination.data()}),
                absl::OkStatus());
      for (int64_t i = 0; i < kStride; ++i) {
        EXPECT_EQ(static_cast<int64_t>(destination[i]), i < kBytes ? (input + position) % 3 * kStride + i : 255);
      }
    }
  }
}

TEST(StageInputTest, RefusesSlotsThatOverlap) {
  const ControlBlock control;
  std::byte bytes[16];
  ExpectInvalid(
      StageInput(HostStream(),
                 {.control = &control, .staging = bytes, .slot_stride = 3, .num_bytes = 4, .destination = bytes + 8}),
      {"StageInput", "slot_stride: 3", "at least 4"});
}

TEST(RecordLossTest, AddsTheLoss) {
  StepState state = {.loss_sum = 1};
  const float loss = 0.25f;
  ASSERT_EQ(RecordLoss(HostStream(), &state, &loss), absl::OkStatus());
  EXPECT_EQ(state.loss_sum, 1.25);
}

TEST(FinishNormTest, SumsThePartialsInRankOrderAndCountsTheUpdate) {
  StepState state = {.norm_squared = -1, .loss_total = -1, .optimizer_steps = 4, .skip = 1};
  // In another order the 1 would survive.
  const double partials[] = {0x1p53, 1.5, 1, 2, -0x1p53, 4};
  ASSERT_EQ(FinishNorm(HostStream(), &state, partials, 3), absl::OkStatus());
  EXPECT_EQ(state.norm_squared, (0x1p53 + 1) - 0x1p53);
  EXPECT_EQ(state.loss_total, 7.5);
  EXPECT_EQ(state.optimizer_steps, 5);
  EXPECT_EQ(state.skip, 0);
}

TEST(FinishNormTest, SkipsAStepWhoseGradientIsNotFinite) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    StepState state = {.optimizer_steps = 4};
    const double partials[] = {1, 1, bad, 1};
    ASSERT_EQ(FinishNorm(HostStream(), &state, partials, 2), absl::OkStatus());
    EXPECT_EQ(state.skip, 1);
    EXPECT_EQ(state.optimizer_steps, 4);
  }
}

TEST(PublishMetricsTest, WritesTheEntryAndClearsTheLoss) {
  const ControlBlock control = {
      .loss_scale = 8, .gradient_divisor = 2, .microbatches = 3, .step = kMetricsRingSize + 5};
  StepState state = {.loss_sum = 9, .norm_squared = 1024, .loss_total = 18, .optimizer_steps = 1, .skip = 1};
  MetricsRing ring;
  ring.published = 69;
  ASSERT_EQ(PublishMetrics(HostStream(), &control, &state, &ring, 2), absl::OkStatus());
  const StepMetrics& metrics = ring.entries[5];
  EXPECT_EQ(metrics.step, kMetricsRingSize + 5);
  EXPECT_EQ(metrics.loss, 3);           // 18 / (2 ranks x 3 microbatches)
  EXPECT_EQ(metrics.gradient_norm, 2);  // 32 / (2 x 8)
  EXPECT_EQ(metrics.loss_scale, 8);
  EXPECT_TRUE(metrics.skipped);
  EXPECT_EQ(ring.published, 70);
  EXPECT_EQ(state.loss_sum, 0);
}

TEST(StepTest, RefusesMissingMemoryByName) {
  const Stream stream = HostStream();
  StepState state;
  ExpectInvalid(NextMicrobatch(stream, nullptr, 1), {"control is empty"});
  ExpectInvalid(RecordLoss(stream, &state, nullptr), {"loss is empty"});
  ExpectInvalid(FinishNorm(stream, &state, nullptr, 1), {"partials is empty"});
  ExpectInvalid(PublishMetrics(stream, nullptr, &state, nullptr, 1), {"control is empty"});
}

}  // namespace
}  // namespace reprise::kernels
