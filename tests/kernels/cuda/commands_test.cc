// Pack, ReduceAccumulate, SquaredNorm and the step commands.
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "reprise/kernels/accumulate.h"
#include "reprise/kernels/norm.h"
#include "reprise/kernels/pack.h"
#include "reprise/kernels/step.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/cuda/twin.h"

namespace reprise::kernels {
namespace {

class CudaCommandsTest : public ::testing::Test {};

struct PackCase {
  int64_t rows, columns, row_stride, wire_element;
};

template <class G, class W>
void ExpectPackEqual(const PackCase& c) {
  Twin twin(
      absl::StrCat("Pack of ", c.rows, " x ", c.columns, ", stride ", c.row_stride, ", to element ", c.wire_element));
  const int64_t elements = c.rows == 0 ? 0 : (c.rows - 1) * c.row_stride + c.columns;
  const Operand gradient = twin.Input(Random<G>({elements}, 1));
  const Operand wire = twin.ExactOutput<W>({c.wire_element + c.rows * c.columns + 5}, WriteMode::kAssign);
  twin.Run([&](Stream s, const Memory& m) {
    return Pack(s, {.gradient_dtype = DTypeOf<G>::value,
                    .gradient = m.data<G>(gradient),
                    .rows = c.rows,
                    .columns = c.columns,
                    .row_stride = c.row_stride,
                    .wire_dtype = DTypeOf<W>::value,
                    .wire = m.data<W>(wire),
                    .wire_element = c.wire_element});
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

template <class W>
void ExpectAccumulateEqual(int num_parts, const std::vector<Segment>& segments, int64_t part_stride, int64_t microbatch,
                           AccumulateMode mode) {
  int64_t end = 0;
  for (const Segment& s : segments) end = std::max(end, s.first + s.count);
  Twin twin(absl::StrCat("ReduceAccumulate of ", num_parts, " parts of ", segments.size(), " segments up to ", end,
                         ", ", std::string(Name(DTypeOf<W>::value)), ", microbatch ", microbatch));
  const Operand control = twin.Struct(ControlBlock{.microbatch = microbatch});
  // Padding between segments is NaN, in the parts as in the accumulator.
  Tensor<W> part_values({num_parts, part_stride});
  Tensor<float> old({part_stride});
  const Tensor<W> random = Random<W>(part_values.shape, 1);
  for (const Segment& s : segments) {
    for (int64_t i = s.first; i < s.first + s.count; ++i) {
      for (int p = 0; p < num_parts; ++p) part_values.data[p * part_stride + i] = random.data[p * part_stride + i];
      if (microbatch != 0 && mode == AccumulateMode::kByMicrobatch) old.data[i] = static_cast<float>(i % 13);
    }
  }
  const Operand parts = twin.Input(part_values), accumulator = twin.Update(old);
  twin.Run([&](Stream s, const Memory& m) {
    return ReduceAccumulate(s, {.control = m.data<ControlBlock>(control),
                                .mode = mode,
                                .wire_dtype = DTypeOf<W>::value,
                                .parts = m.data<W>(parts),
                                .num_parts = num_parts,
                                .part_stride = part_stride,
                                .accumulator = m.data<float>(accumulator),
                                .segments = segments});
  });
}

TEST_F(CudaCommandsTest, ReduceAccumulateEqualsTheHostBitForBit) {
  std::vector<Segment> many;
  for (int64_t i = 0; i < 150; ++i) many.push_back({i * 96 + i % 3, i % 64});
  const std::vector<std::vector<Segment>> lists = {{},
                                                   {{0, 0}},
                                                   {{0, 1}},
                                                   {{64, 4096}},
                                                   {{0, 4097}, {4160, 70001}},
                                                   {{1, 3}, {64, 1}, {70, 0}, {100, 4000}, {8192, 9000}},
                                                   many,
                                                   {{0, kLargeCount}}};
  for (const auto& segments : lists) {
    int64_t end = 0;
    for (const Segment& s : segments) end = std::max(end, s.first + s.count);
    for (const int num_parts : {1, 2, 3, 8}) {
      if (end == kLargeCount && num_parts > 2) continue;
      for (const int64_t stride : {(end + 63) / 64 * 64, end + 1}) {
        for (const int64_t microbatch : {0, 2}) {
          ExpectAccumulateEqual<float>(num_parts, segments, stride, microbatch, AccumulateMode::kByMicrobatch);
          ExpectAccumulateEqual<BFloat16>(num_parts, segments, stride, microbatch, AccumulateMode::kByMicrobatch);
        }
      }
    }
  }
  ExpectAccumulateEqual<BFloat16>(2, {{0, 100}}, 128, 3, AccumulateMode::kAlwaysAssign);
}

// Multiples of 1/64 up to 1: their squares have exact sums, in any order.
TEST_F(CudaCommandsTest, SquaredNormEqualsTheHostWhereSumsAreExact) {
  std::vector<int64_t> counts(std::begin(kCounts), std::end(kCounts));
  counts.insert(counts.end(), {kLargeCount, 20 * kLargeCount});
  for (const int64_t count : counts) {
    Tensor<float> values = Random<float>({count}, 1);
    for (float& value : values.data) value = std::round(value * 64) / 64;
    ForEachMode([&](WriteMode mode) {
      Twin twin(absl::StrCat("SquaredNorm of ", count, ", ", NameOf(mode)));
      const Operand x = twin.Input(values), result = twin.Struct(mode == WriteMode::kAdd ? 2.5 : std::nan(""));
      twin.Run([&](Stream s, const Memory& m) {
        return SquaredNorm(s, m.data<float>(x), count, m.data<double>(result), mode);
      });
    });
  }
}

// Sums of any values, in double: |error| <= count 2^-53 of the sum of positive terms.
TEST_F(CudaCommandsTest, SquaredNormIsAccurate) {
  Device& device = Device::Get();
  constexpr int64_t kCount = 300007;
  const Tensor<float> values = Random<float>({kCount}, 1, 3);
  double want = 0;
  ASSERT_EQ(SquaredNorm(HostStream(), values.data.data(), kCount, &want), absl::OkStatus());
  std::byte* base = device.memory(kCount * sizeof(float) + 256);
  double* result = reinterpret_cast<double*>(base);
  float* x = reinterpret_cast<float*>(base + 256);
  ASSERT_EQ(device.Upload(x, values.data.data(), kCount * sizeof(float)), absl::OkStatus());
  ASSERT_EQ(device.Run([&] { return SquaredNorm(device.stream(), x, kCount, result); }), absl::OkStatus());
  double got = 0;
  ASSERT_EQ(cudaMemcpy(&got, result, sizeof(got), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_LE(std::abs(got - want), 2 * kCount * 0x1p-53 * want) << got << " and " << want;
}

TEST_F(CudaCommandsTest, NextMicrobatch) {
  Twin twin("NextMicrobatch");
  const Operand control = twin.Struct(ControlBlock{.microbatch = 100,
                                                   .next_microbatch = 4,
                                                   .input = 100,
                                                   .next_input = 9,
                                                   .random_offset = 100,
                                                   .next_random_offset = 11});
  twin.Run([&](Stream s, const Memory& m) { return NextMicrobatch(s, m.data<ControlBlock>(control), 3); });
}

TEST_F(CudaCommandsTest, StageInputCopiesTheSlotOfTheMicrobatch) {
  for (const int64_t num_bytes : {int64_t{1}, int64_t{5}, int64_t{16}, int64_t{4099}, kLargeCount}) {
    for (const int64_t stride : {num_bytes, (num_bytes + 255) / 256 * 256}) {
      for (int64_t input = 0; input < 3; ++input) {
        Tensor<uint8_t> slots({3 * stride}, 0);
        for (size_t i = 0; i < slots.data.size(); ++i) slots.data[i] = static_cast<uint8_t>(i * 31 + i / stride);
        Twin twin(absl::StrCat("StageInput of ", num_bytes, ", stride ", stride, ", input ", input));
        const Operand control = twin.Struct(ControlBlock{.input = input}), staging = twin.Input(slots);
        const Operand destination = twin.Update(Tensor<uint8_t>({num_bytes}, 0));
        twin.Run([&](Stream s, const Memory& m) {
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
  Twin twin("RecordLoss");
  const Operand state = twin.Struct(StepState{.loss_sum = 1}), loss = twin.Input(Tensor<float>({}, 0.3f));
  twin.Run([&](Stream s, const Memory& m) { return RecordLoss(s, m.data<StepState>(state), m.data<float>(loss)); });
}

TEST_F(CudaCommandsTest, FinishNorm) {
  struct Partials {
    double values[6];
  };
  const double infinity = std::numeric_limits<double>::infinity();
  // In another order than that of the ranks the 1 would survive.
  for (const Partials& partials : {Partials{{0x1p53, 1.5, 1, 2, -0x1p53, 4}}, Partials{{1, 1, infinity, 1, 1, 1}}}) {
    Twin twin(absl::StrCat("FinishNorm of ", partials.values[2]));
    const Operand state = twin.Struct(StepState{.norm_squared = -1, .loss_total = -1, .optimizer_steps = 4, .skip = 1});
    const Operand values = twin.Struct(partials);
    twin.Run(
        [&](Stream s, const Memory& m) { return FinishNorm(s, m.data<StepState>(state), m.data<double>(values), 3); });
  }
}

// The bits of a NaN are not the host's.
TEST_F(CudaCommandsTest, FinishNormSkipsAStepWhoseGradientIsNan) {
  Device& device = Device::Get();
  const double partials[] = {std::nan(""), 1};
  StepState state = {.optimizer_steps = 4};
  std::byte* base = device.memory(512);
  auto* device_state = reinterpret_cast<StepState*>(base);
  auto* device_partials = reinterpret_cast<double*>(base + 256);
  ASSERT_EQ(device.Upload(device_state, &state, sizeof(state)), absl::OkStatus());
  ASSERT_EQ(device.Upload(device_partials, partials, sizeof(partials)), absl::OkStatus());
  ASSERT_EQ(device.Run([&] { return FinishNorm(device.stream(), device_state, device_partials, 1); }),
            absl::OkStatus());
  ASSERT_EQ(cudaMemcpy(&state, device_state, sizeof(state), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(state.skip, 1);
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
  StepState state = {.loss_sum = 9, .norm_squared = 1000, .loss_total = 17, .optimizer_steps = 1, .skip = 1};
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
