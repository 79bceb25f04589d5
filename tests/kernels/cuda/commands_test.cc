// Pack, ReduceAccumulate and the step commands.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/core/norm_ranges.h"
#include "reprise/kernels/accumulate.h"
#include "reprise/kernels/pack.h"
#include "reprise/kernels/step.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/cuda/host_comparison.h"

namespace reprise::kernels {
namespace {

class CudaCommandsTest : public ::testing::Test {};

struct PackCase {
  int64_t rows, columns, row_stride, reduce_element;
};

template <class G, class W>
void ExpectPackEqual(const PackCase& c) {
  HostComparison both(
      absl::StrCat("Pack of ", c.rows, " x ", c.columns, ", stride ", c.row_stride, ", to element ", c.reduce_element));
  const int64_t elements = c.rows == 0 ? 0 : (c.rows - 1) * c.row_stride + c.columns;
  const Operand gradient = both.Input(Random<G>({elements}, 1));
  const Operand reduce_buffer = both.ExactOutput<W>({c.reduce_element + c.rows * c.columns + 5}, WriteMode::kAssign);
  both.Run([&](Stream s, const Memory& m) {
    return Pack(s, {.gradient_dtype = DTypeOf<G>::value,
                    .gradient = m.data<G>(gradient),
                    .rows = c.rows,
                    .columns = c.columns,
                    .row_stride = c.row_stride,
                    .reduce_dtype = DTypeOf<W>::value,
                    .reduce_buffer = m.data<W>(reduce_buffer),
                    .reduce_element = c.reduce_element});
  });
}

TEST_F(CudaCommandsTest, PackEqualsTheHostBitForBit) {
  for (const PackCase& c :
       {PackCase{1, 0, 0, 3}, PackCase{0, 7, 7, 0}, PackCase{1, 1, 1, 0}, PackCase{1, 4100, 4100, 64},
        PackCase{3, 5, 5, 1}, PackCase{3, 5, 9, 1}, PackCase{257, 8, 16, 8}, PackCase{33, 64, 192, 128},
        PackCase{9, 1031, 1032, 7}, PackCase{1, kLargeCount, kLargeCount, 64}}) {
    ExpectPackEqual<float, BFloat16>(c);
    ExpectPackEqual<BFloat16, BFloat16>(c);
    ExpectPackEqual<float, float>(c);
    ExpectPackEqual<BFloat16, float>(c);
  }
}

// Segments of an accumulator of `elements`, the microbatch of a step of three, and whether compute runs beside it.
struct AccumulateCase {
  std::vector<Segment> segments;
  int64_t elements = 0;
  int num_parts = 1;
  int64_t microbatch = 0;
  AccumulateMode mode = AccumulateMode::kByMicrobatch;
  bool beside_compute = false;
  int own_place = -1;  // of one more part, which lies by itself
};

// The parts and the old sum are whole multiples of 1/64 up to 4: squares of their sums have exact sums in any order, so
// that partial norms too equal the host's bit for bit.
template <class W>
void ExpectAccumulateEqual(const AccumulateCase& c) {
  HostComparison both(absl::StrCat("ReduceAccumulate of ", c.num_parts, " parts of ", c.segments.size(),
                                   " segments of ", c.elements, ", ", std::string(Name(DTypeOf<W>::value)),
                                   ", microbatch ", c.microbatch, ", beside compute ", c.beside_compute, ", own part ",
                                   c.own_place));
  const Operand control = both.Struct(ControlBlock{.microbatches = 3, .microbatch = c.microbatch});
  // Padding between segments is NaN, in the parts as in the accumulator.
  Tensor<W> part_values({c.num_parts, c.elements}), own_values({c.own_place < 0 ? 0 : c.elements});
  Tensor<float> old({c.elements});
  const bool adds = c.microbatch != 0 && c.mode == AccumulateMode::kByMicrobatch;
  for (const Segment& s : c.segments) {
    for (int64_t i = s.first; i < s.first + s.count; ++i) {
      for (int p = 0; p < c.num_parts; ++p) {
        const float value = static_cast<float>((i * 31 + p * 17 + i / 61) % 129 - 64) / 64;
        part_values.data[p * c.elements + i] = static_cast<W>(value);
      }
      if (c.own_place >= 0) own_values.data[i] = static_cast<W>(static_cast<float>((i * 7) % 129 - 64) / 64);
      if (adds) old.data[i] = static_cast<float>(i % 13) / 4;
    }
  }
  const Operand parts = both.Input(part_values), own = both.Input(own_values);
  const Operand norm = both.Structs(std::vector<double>(NormRanges(c.elements), -1));
  const Operand accumulator = both.Update(old);
  both.Run([&](Stream s, const Memory& m) {
    return ReduceAccumulate(s, {.control = m.data<ControlBlock>(control),
                                .mode = c.mode,
                                .reduce_dtype = DTypeOf<W>::value,
                                .parts = m.data<W>(parts),
                                .num_parts = c.num_parts,
                                .own = c.own_place < 0 ? nullptr : m.data<W>(own),
                                .own_place = std::max(c.own_place, 0),
                                .elements = c.elements,
                                .accumulator = m.data<float>(accumulator),
                                .segments = c.segments,
                                .norm_partials = m.data<double>(norm),
                                .beside_compute = c.beside_compute});
  });
}

TEST_F(CudaCommandsTest, ReduceAccumulateEqualsTheHostBitForBit) {
  std::vector<Segment> many, across;
  for (int64_t i = 0; i < 150; ++i) many.push_back({i * 96 + i % 3, i % 64});
  // More than one launch takes, with launches that end within ranges.
  for (int64_t i = 0; i < 150; ++i) across.push_back({i * 700 + i % 5, 690});
  const std::vector<std::vector<Segment>> lists = {{},
                                                   {{0, 0}},
                                                   {{0, 1}},
                                                   {{64, 4096}},
                                                   {{0, 4097}, {4160, 70001}},
                                                   {{1, 3}, {64, 1}, {70, 0}, {100, 4000}, {8192, 9000}},
                                                   {{kNormTile, kNormTile}, {3 * kNormTile - 1, 2}},
                                                   many,
                                                   across,
                                                   {{0, kLargeCount}}};
  for (const auto& segments : lists) {
    const int64_t end = segments.empty() ? 0 : segments.back().first + segments.back().count;
    for (const int num_parts : {1, 2, 3, 8}) {
      if (end == kLargeCount && num_parts > 2) continue;
      for (const int64_t elements : {(end + 63) / 64 * 64 + 64, end + 1}) {
        for (const int64_t microbatch : {0, 1, 2}) {
          const AccumulateCase c = {segments, elements, num_parts, microbatch};
          ExpectAccumulateEqual<float>(c);
          ExpectAccumulateEqual<BFloat16>(c);
        }
      }
    }
  }
  ExpectAccumulateEqual<BFloat16>({{{0, 100}}, 128, 2, 1, AccumulateMode::kAlwaysAssign});
}

TEST_F(CudaCommandsTest, ReduceAccumulateTakesAPartThatLiesByItself) {
  for (const auto& [num_parts, own_place] : {std::pair(0, 0), {1, 0}, {1, 1}, {2, 1}, {3, 0}, {7, 4}, {7, 7}}) {
    for (const std::vector<Segment>& segments :
         {std::vector<Segment>{{0, 4097}, {4160, 70001}}, std::vector<Segment>{{1, 3}, {100, 4000}}}) {
      const AccumulateCase c = {
          .segments = segments, .elements = 80000, .num_parts = num_parts, .microbatch = 2, .own_place = own_place};
      ExpectAccumulateEqual<float>(c);
      ExpectAccumulateEqual<BFloat16>(c);
    }
  }
}

// Enough elements that a launch beside compute takes few blocks.
TEST_F(CudaCommandsTest, ReduceAccumulateDoesNotDependOnComputeBesideIt) {
  constexpr int64_t kElements = (int64_t{20} << 20) + 128;
  const std::vector<Segment> segments = {{0, kElements / 2 - 3}, {kElements / 2, kElements / 2 - 5}};
  for (const bool beside_compute : {false, true}) {
    ExpectAccumulateEqual<BFloat16>({.segments = segments,
                                     .elements = kElements,
                                     .num_parts = 2,
                                     .microbatch = 2,
                                     .beside_compute = beside_compute});
  }
}

// Any values, whose sums round: the same bits from few blocks as from many and wherever the operands lie, and partial
// norms as accurate as sums in double are, |error| <= count 2^-53 of a sum of positive terms.
TEST_F(CudaCommandsTest, PartialNormsAreAccurateAndEqualForAnyGridAndPlace) {
  Device& device = Device::Get();
  constexpr int64_t kElements = (int64_t{16} << 20) + 64 * 7;
  constexpr int64_t kBytes = kElements * sizeof(float);
  if (IsTooLarge(2 * kBytes)) GTEST_SKIP() << "larger than REPRISE_TEST_MAX_BYTES";
  const int64_t ranges = NormRanges(kElements), range = NormRangeElements(kElements);
  const Tensor<float> values = Random<float>({kElements}, 1, 3);
  constexpr int64_t kHead = 256 + kMaxNormRanges * int64_t{sizeof(double)};
  std::byte* base = device.memory(kHead + 2 * (kBytes + 256));
  auto* control = reinterpret_cast<ControlBlock*>(base);
  auto* partials = reinterpret_cast<double*>(base + 256);
  auto* aligned = reinterpret_cast<float*>(base + kHead);
  const ControlBlock first;
  ASSERT_EQ(device.Upload(control, &first, sizeof(first)), absl::OkStatus());
  const auto norms = [&](bool beside_compute, int64_t shift) {
    float* const parts = aligned + shift;
    EXPECT_EQ(device.Upload(parts, values.data.data(), kBytes), absl::OkStatus());
    EXPECT_EQ(device.Run([&] {
      return ReduceAccumulate(device.stream(), {.control = control,
                                                .reduce_dtype = DType::kFloat32,
                                                .parts = parts,
                                                .elements = kElements,
                                                .accumulator = parts + kElements + 32,
                                                .segments = {{0, kElements - 2}},
                                                .norm_partials = partials,
                                                .beside_compute = beside_compute});
    }),
              absl::OkStatus());
    std::vector<double> got(ranges);
    EXPECT_EQ(cudaMemcpy(got.data(), partials, ranges * sizeof(double), cudaMemcpyDeviceToHost), cudaSuccess);
    return got;
  };
  const std::vector<double> got = norms(/*beside_compute=*/false, /*shift=*/0);
  EXPECT_EQ(norms(/*beside_compute=*/true, /*shift=*/0), got);
  EXPECT_EQ(norms(/*beside_compute=*/false, /*shift=*/1), got);
  for (int64_t r = 0; r < ranges; ++r) {
    double want = 0;
    for (int64_t i = r * range; i < std::min(kElements - 2, (r + 1) * range); ++i) {
      want += static_cast<double>(values.data[i]) * values.data[i];
    }
    ASSERT_LE(std::abs(got[r] - want), 2 * static_cast<double>(range) * 0x1p-53 * want) << "range " << r;
  }
}

// The bits of a NaN are not the host's.
TEST_F(CudaCommandsTest, PartialNormsAreFiniteIfAndOnlyIfAllValuesAre) {
  Device& device = Device::Get();
  constexpr int64_t kElements = 2 * kNormTile;
  std::byte* base = device.memory(2 * kElements * sizeof(float) + 256);
  auto* partials = reinterpret_cast<double*>(base);
  auto* parts = reinterpret_cast<float*>(base + 256);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {std::numeric_limits<float>::max(), std::nanf(""), infinity, -infinity}) {
    Tensor<float> values({kElements}, std::numeric_limits<float>::max());
    values.data[kNormTile + 77] = value;
    ASSERT_EQ(device.Upload(parts, values.data.data(), kElements * sizeof(float)), absl::OkStatus());
    ASSERT_EQ(device.Run([&] {
      return ReduceAccumulate(device.stream(), {.mode = AccumulateMode::kAlwaysAssign,
                                                .reduce_dtype = DType::kFloat32,
                                                .parts = parts,
                                                .elements = kElements,
                                                .accumulator = parts + kElements,
                                                .segments = {{0, kElements}},
                                                .norm_partials = partials});
    }),
              absl::OkStatus());
    double got[2] = {};
    ASSERT_EQ(cudaMemcpy(got, partials, sizeof(got), cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_TRUE(std::isfinite(got[0]));
    EXPECT_EQ(std::isfinite(got[1]), std::isfinite(value)) << value;
  }
}

TEST_F(CudaCommandsTest, NextMicrobatch) {
  HostComparison both("NextMicrobatch");
  const Operand control = both.Struct(ControlBlock{.microbatch = 100, .next_microbatch = 4, .earlier_microbatches = 9});
  both.Run([&](Stream s, const Memory& m) { return NextMicrobatch(s, m.data<ControlBlock>(control), 3); });
}

TEST_F(CudaCommandsTest, StageInputCopiesTheSlotOfTheMicrobatch) {
  for (const int64_t num_bytes : {int64_t{1}, int64_t{5}, int64_t{16}, int64_t{4099}, kLargeCount}) {
    for (const int64_t stride : {num_bytes, (num_bytes + 255) / 256 * 256}) {
      for (int64_t input = 0; input < 3; ++input) {
        Tensor<uint8_t> slots({3 * stride}, 0);
        for (size_t i = 0; i < slots.data.size(); ++i) slots.data[i] = static_cast<uint8_t>(i * 31 + i / stride);
        HostComparison both(absl::StrCat("StageInput of ", num_bytes, ", stride ", stride, ", input ", input));
        const Operand control =
            both.Struct(ControlBlock{.microbatch = input / 2, .earlier_microbatches = input - input / 2});
        const Operand staging = both.Input(slots);
        const Operand destination = both.Update(Tensor<uint8_t>({num_bytes}, 0));
        both.Run([&](Stream s, const Memory& m) {
          return StageInput(s, {.control = m.data<ControlBlock>(control),
                                .position = 1,
                                .slots = 3,
                                .staging = m.data<std::byte>(staging),
                                .slot_stride = stride,
                                .num_bytes = num_bytes,
                                .destination = m.data<std::byte>(destination)});
        });
      }
    }
  }
}

TEST_F(CudaCommandsTest, RecordLoss) {
  HostComparison both("RecordLoss");
  const Operand state = both.Struct(StepState{.loss_sum = 1}), loss = both.Input(Tensor<float>({}, 0.3f));
  both.Run([&](Stream s, const Memory& m) { return RecordLoss(s, m.data<StepState>(state), m.data<float>(loss)); });
}

TEST_F(CudaCommandsTest, FinishNorm) {
  struct Parts {
    NormPart values[3];
  };
  const double infinity = std::numeric_limits<double>::infinity();
  // In another order than that of the ranks the 1 would survive.
  for (const Parts& parts :
       {Parts{{{0x1p53, 1.5, 7}, {1, 2, 7}, {-0x1p53, 4, 7}}}, Parts{{{1, 1, 7}, {infinity, 1, 7}, {1, 1, 7}}},
        Parts{{{1, 1, 7}, {2, 1, 7}, {1, 1, 8}}}, Parts{{{1, 1, 8}, {3, 1, 8}, {1, 1, 8}}},
        // A divided norm that no float holds.
        Parts{{{1e74, 1, 7}, {4, 1, 7}, {1, 1, 7}}}}) {
    HostComparison both(absl::StrCat("FinishNorm of ", parts.values[1].norm_squared));
    const Operand control = both.Struct(ControlBlock{.gradient_divisor = 0.01f, .agreed = 7});
    const Operand state = both.Struct(
        StepState{.norm_squared = -1, .loss_total = -1, .optimizer_steps = 4, .skip = SkipReason::kGradientNotFinite});
    const Operand values = both.Struct(parts);
    both.Run([&](Stream s, const Memory& m) {
      return FinishNorm(s, m.data<ControlBlock>(control), m.data<StepState>(state), m.data<NormPart>(values), 3);
    });
  }
}

// The bits of a NaN are not the host's.
TEST_F(CudaCommandsTest, FinishNormSkipsAStepWhoseGradientIsNan) {
  Device& device = Device::Get();
  const ControlBlock control;
  const NormPart part = {std::nan(""), 1};
  StepState state = {.optimizer_steps = 4};
  std::byte* base = device.memory(512);
  auto* device_state = reinterpret_cast<StepState*>(base);
  auto* device_part = reinterpret_cast<NormPart*>(base + 256);
  auto* device_control = reinterpret_cast<ControlBlock*>(base + 384);
  ASSERT_EQ(device.Upload(device_control, &control, sizeof(control)), absl::OkStatus());
  ASSERT_EQ(device.Upload(device_state, &state, sizeof(state)), absl::OkStatus());
  ASSERT_EQ(device.Upload(device_part, &part, sizeof(part)), absl::OkStatus());
  ASSERT_EQ(device.Run([&] { return FinishNorm(device.stream(), device_control, device_state, device_part, 1); }),
            absl::OkStatus());
  ASSERT_EQ(cudaMemcpy(&state, device_state, sizeof(state), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(state.skip, SkipReason::kGradientNotFinite);
  EXPECT_EQ(state.optimizer_steps, 4);
  EXPECT_TRUE(std::isnan(state.norm_squared));
}

// In host memory that both sides see, as sessions keep it.
TEST_F(CudaCommandsTest, PublishMetricsWritesToTheHost) {
  MetricsRing* ring = nullptr;
  ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&ring), sizeof(MetricsRing), cudaHostAllocMapped), cudaSuccess);
  *ring = MetricsRing();
  Device& device = Device::Get();
  ControlBlock control = {.loss_scale = 8, .gradient_divisor = 2, .microbatches = 3, .step = kMetricsRingSize + 5};
  StepState state = {
      .loss_sum = 9, .norm_squared = 1000, .loss_total = 17, .optimizer_steps = 1, .skip = SkipReason::kRanksDiffer};
  std::byte* base = device.memory(1024);
  auto* device_control = reinterpret_cast<ControlBlock*>(base);
  auto* device_state = reinterpret_cast<StepState*>(base + 512);
  ASSERT_EQ(device.Upload(device_control, &control, sizeof(control)), absl::OkStatus());
  ASSERT_EQ(device.Upload(device_state, &state, sizeof(state)), absl::OkStatus());
  void* mapped = nullptr;
  ASSERT_EQ(cudaHostGetDevicePointer(&mapped, ring, 0), cudaSuccess);
  MetricsRing want;
  ASSERT_EQ(PublishMetrics(HostStream(), &control, &state, &want, 2), absl::OkStatus());
  int64_t published = 0;
  const auto enqueue = [&] {
    return PublishMetrics(device.stream(), device_control, device_state, static_cast<MetricsRing*>(mapped), 2);
  };
  const auto expect_published = [&] {
    ++published;
    EXPECT_EQ(std::atomic_ref(ring->published).load(std::memory_order_acquire), published);
    const StepMetrics &metrics = ring->entries[5], &expected = want.entries[5];
    EXPECT_EQ(metrics.step, expected.step);
    EXPECT_EQ(metrics.loss, expected.loss);
    EXPECT_EQ(metrics.gradient_norm, expected.gradient_norm);
    EXPECT_EQ(metrics.loss_scale, expected.loss_scale);
    EXPECT_EQ(metrics.skipped, expected.skipped);
    EXPECT_EQ(metrics.skip_reason, expected.skip_reason);
  };
  ASSERT_EQ(device.Run(enqueue), absl::OkStatus());
  expect_published();
  EXPECT_EQ(device.Replay(
                enqueue, [] {}, expect_published),
            absl::OkStatus());
  StepState after;
  ASSERT_EQ(cudaMemcpy(&after, device_state, sizeof(after), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(after.loss_sum, 0);
  EXPECT_EQ(after.loss_total, 17);
  EXPECT_EQ(cudaFreeHost(ring), cudaSuccess);
}

}  // namespace
}  // namespace reprise::kernels
