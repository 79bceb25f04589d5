#include "reprise/kernels/step.h"

#include "tests/kernels/kernel_testing.h"

namespace reprise::kernels {
namespace {

TEST(NextMicrobatchTest, MovesTheCountersToTheNextReplay) {
  ControlBlock control = {.microbatch = 100, .next_microbatch = 4, .earlier_microbatches = 9};
  ASSERT_EQ(NextMicrobatch(HostStream(), &control, 2), absl::OkStatus());
  EXPECT_EQ(control.microbatch, 4);
  EXPECT_EQ(control.next_microbatch, 6);
  EXPECT_EQ(control.earlier_microbatches, 9);
  ExpectInvalid(NextMicrobatch(HostStream(), &control, 0), {"NextMicrobatch", "count: 0", "at least 1"});
}

TEST(StageInputTest, CopiesTheSlotOfTheMicrobatch) {
  constexpr int64_t kStride = 8, kBytes = 5;
  std::vector<std::byte> staging(3 * kStride);
  for (size_t i = 0; i < staging.size(); ++i) staging[i] = std::byte(i);
  for (int64_t input = 0; input < 5; ++input) {
    for (int position = 0; position < 4; ++position) {
      const ControlBlock control = {.microbatch = input / 3, .earlier_microbatches = input - input / 3};
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
  const ControlBlock control = {.agreed = 7};
  StepState state = {
      .norm_squared = -1, .loss_total = -1, .optimizer_steps = 4, .skip = SkipReason::kGradientNotFinite};
  // In another order the 1 would survive.
  const NormPart parts[] = {{0x1p53, 1.5, 7}, {1, 2, 7}, {-0x1p53, 4, 7}};
  ASSERT_EQ(FinishNorm(HostStream(), &control, &state, parts, 3), absl::OkStatus());
  EXPECT_EQ(state.norm_squared, (0x1p53 + 1) - 0x1p53);
  EXPECT_EQ(state.loss_total, 7.5);
  EXPECT_EQ(state.optimizer_steps, 5);
  EXPECT_EQ(state.skip, SkipReason::kNone);
}

TEST(FinishNormTest, SkipsAStepWhoseGradientIsNotFinite) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const ControlBlock control;
    StepState state = {.optimizer_steps = 4};
    const NormPart parts[] = {{1, 1}, {bad, 1}};
    ASSERT_EQ(FinishNorm(HostStream(), &control, &state, parts, 2), absl::OkStatus());
    EXPECT_EQ(state.skip, SkipReason::kGradientNotFinite);
    EXPECT_EQ(state.optimizer_steps, 4);
  }
}

TEST(FinishNormTest, SkipsAStepWhoseDividedGradientHasANormThatNoFloatHolds) {
  const NormPart part = {.norm_squared = 1e74};
  const auto skip = [&](float divisor, float loss_scale) {
    const ControlBlock control = {.loss_scale = loss_scale, .gradient_divisor = divisor};
    StepState state;
    EXPECT_EQ(FinishNorm(HostStream(), &control, &state, &part, 1), absl::OkStatus());
    EXPECT_EQ(state.optimizer_steps, state.skip == SkipReason::kNone ? 1 : 0);
    return state.skip;
  };
  EXPECT_EQ(skip(0.1f, 1), SkipReason::kNone);  // 1e38
  EXPECT_EQ(skip(0.01f, 1), SkipReason::kGradientNotFinite);
  EXPECT_EQ(skip(1, 0x1p-6f), SkipReason::kGradientNotFinite);
  EXPECT_EQ(skip(3e38f, 0x1p100f), SkipReason::kNone);  // the product of both is more than a float holds
}

TEST(FinishNormTest, SkipsAStepOfWhichRanksHaveOtherFacts) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const ControlBlock control = {.agreed = 7};
  // Of the first rank, the last one, this one alone, and memory that nobody filled.
  const NormPart differing[][3] = {{{1, 1, 8}, {1, 1, 7}, {1, 1, 7}},
                                   {{1, 1, 7}, {1, 1, 7}, {1, 1, 6}},
                                   {{1, 1, 8}, {1, 1, 8}, {1, 1, 8}},
                                   {{1, 1, 7}, {nan, nan, ~uint64_t{0}}, {1, 1, 7}}};
  for (const auto& parts : differing) {
    StepState state = {.optimizer_steps = 4};
    ASSERT_EQ(FinishNorm(HostStream(), &control, &state, parts, 3), absl::OkStatus());
    EXPECT_EQ(state.skip, SkipReason::kRanksDiffer);
    EXPECT_EQ(state.optimizer_steps, 4);
  }
}

TEST(PublishMetricsTest, WritesTheEntryAndClearsTheLoss) {
  const ControlBlock control = {
      .loss_scale = 8, .gradient_divisor = 2, .microbatches = 3, .step = kMetricsRingSize + 5};
  StepState state = {
      .loss_sum = 9, .norm_squared = 1024, .loss_total = 18, .optimizer_steps = 1, .skip = SkipReason::kRanksDiffer};
  MetricsRing ring;
  ring.published = 69;
  ASSERT_EQ(PublishMetrics(HostStream(), &control, &state, &ring, 2), absl::OkStatus());
  const StepMetrics& metrics = ring.entries[5];
  EXPECT_EQ(metrics.step, kMetricsRingSize + 5);
  EXPECT_EQ(metrics.loss, 3);           // 18 / (2 ranks x 3 microbatches)
  EXPECT_EQ(metrics.gradient_norm, 2);  // 32 / (2 x 8)
  EXPECT_EQ(metrics.loss_scale, 8);
  EXPECT_TRUE(metrics.skipped);
  EXPECT_EQ(metrics.skip_reason, SkipReason::kRanksDiffer);
  EXPECT_EQ(ring.published, 70);
  EXPECT_EQ(state.loss_sum, 0);
}

TEST(StepTest, RefusesMissingMemoryByName) {
  const Stream stream = HostStream();
  StepState state;
  ExpectInvalid(NextMicrobatch(stream, nullptr, 1), {"control is empty"});
  ExpectInvalid(RecordLoss(stream, &state, nullptr), {"loss is empty"});
  ExpectInvalid(FinishNorm(stream, nullptr, &state, nullptr, 1), {"control is empty"});
  ExpectInvalid(PublishMetrics(stream, nullptr, &state, nullptr, 1), {"control is empty"});
}

}  // namespace
}  // namespace reprise::kernels
