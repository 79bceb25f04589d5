// The error of the exchange against sums in double, beside that of reduce-scatters whose results are bfloat16.
#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/core/norm_ranges.h"
#include "reprise/kernels/accumulate.h"
#include "tests/kernels/kernel_testing.h"

namespace reprise::kernels {
namespace {

constexpr int64_t kCount = int64_t{1} << 14;
constexpr int kMicrobatches = 4;
constexpr uint64_t kSeeds = 8;
constexpr double kUnit = 0x1p-24;  // relative error of one addition in float

// One microbatch's gradients of one shard: element i of rank r is at r * kCount + i.
using Parts = std::vector<BFloat16>;

// Each element has a scale of its own, and its parts differ by up to 2^4. In every second element each odd rank's part
// nearly cancels the one before it, so that the sum has lost all but a few bits.
Parts RandomParts(int world, std::mt19937_64& generator) {
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> element_scale(-24, 8), part_scale(-4, 0);
  Parts parts(world * kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    const int scale = element_scale(generator);
    for (int rank = 0; rank < world; ++rank) {
      const bool cancels = i % 2 == 1 && rank % 2 == 1;
      const float before = cancels ? static_cast<float>(parts[(rank - 1) * kCount + i]) : 0.0f;
      const float fresh = std::ldexp(normal(generator), scale + (cancels ? -6 : part_scale(generator)));
      parts[rank * kCount + i] = BFloat16(fresh - before);
    }
  }
  return parts;
}

// Where the partial sums of a reduce-scatter are rounded to bfloat16.
enum class Rounding {
  kEachAddition,  // NCCL's rings: partial sums travel from rank to rank in the dtype of the buffers
  kResult,        // NCCL's kernels for symmetric memory: the sum is made in float
};

// What a reduce-scatter gives the owner of each element. The sum starts at the next rank and ends at the owner, who is
// another one for each part of the elements.
Parts ReduceScattered(const Parts& parts, int world, Rounding rounding) {
  Parts reduced(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    const int64_t owner = i * world / kCount;
    const auto part = [&](int64_t steps) { return static_cast<float>(parts[(owner + steps) % world * kCount + i]); };
    float sum = part(1);
    for (int steps = 2; steps <= world; ++steps) {
      sum += part(steps);
      if (rounding == Rounding::kEachAddition) sum = static_cast<float>(BFloat16(sum));
    }
    reduced[i] = BFloat16(sum);
  }
  return reduced;
}

void Accumulate(const Parts& parts, int microbatch, Tensor<float>& accumulator) {
  const ControlBlock control = {.microbatch = microbatch};
  std::vector<double> partials(NormRanges(kCount));
  ASSERT_EQ(ReduceAccumulate(HostStream(), {.control = &control,
                                            .parts = parts.data(),
                                            .num_parts = static_cast<int>(parts.size() / kCount),
                                            .elements = kCount,
                                            .accumulator = accumulator.data.data(),
                                            .segments = {{0, kCount}},
                                            .norm_partials = partials.data()}),
            absl::OkStatus());
}

// Errors over the sum of the magnitudes of what was added, in units of 2^-24.
struct Errors {
  void Add(double error) {
    largest = std::max(largest, std::abs(error));
    squares += error * error;
    ++count;
  }
  double rms() const { return std::sqrt(squares / static_cast<double>(count)); }

  double largest = 0, squares = 0;
  int64_t count = 0;
};

void Report(const std::string& name, const Errors& errors) {
  ::testing::Test::RecordProperty(name + "_largest", absl::StrCat(errors.largest));
  ::testing::Test::RecordProperty(name + "_rms", absl::StrCat(errors.rms()));
  std::cout << "; " << name << " " << errors.largest << ", " << errors.rms();
}

class ExchangeErrorTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ExchangeErrorTest, ::testing::Values(2, 4, 8),
                         [](const auto& info) { return absl::StrCat(info.param); });

TEST_P(ExchangeErrorTest, IsWithinItsFormulaAndNoLargerThanThatOfReduceScattersInBFloat16) {
  const int world = GetParam();
  Errors exchange, ring, symmetric;
  double largest_bound = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    std::mt19937_64 generator(seed);
    Tensor<float> exchanged({kCount}), by_ring({kCount}), by_symmetric({kCount});
    Values want(kCount, 0), magnitude(kCount, 0), bound(kCount, 0);
    for (int m = 0; m < kMicrobatches; ++m) {
      const Parts parts = RandomParts(world, generator);
      ASSERT_NO_FATAL_FAILURE(Accumulate(parts, m, exchanged));
      ASSERT_NO_FATAL_FAILURE(Accumulate(ReduceScattered(parts, world, Rounding::kEachAddition), m, by_ring));
      ASSERT_NO_FATAL_FAILURE(Accumulate(ReduceScattered(parts, world, Rounding::kResult), m, by_symmetric));
      for (int64_t i = 0; i < kCount; ++i) {
        double parts_magnitude = 0;
        for (int rank = 0; rank < world; ++rank) {
          const double part = static_cast<float>(parts[rank * kCount + i]);
          want[i] += part;
          parts_magnitude += std::abs(part);
        }
        magnitude[i] += parts_magnitude;
        // Each addition errs by a unit of its result, which is at most the sum of the magnitudes added until then.
        bound[i] += (world - 1) * kUnit * parts_magnitude + (m > 0 ? kUnit * magnitude[i] : 0);
      }
    }
    for (int64_t i = 0; i < kCount; ++i) {
      const double unit = kUnit * magnitude[i];
      // The results' own errors are in the magnitudes that bound those of later additions.
      ASSERT_LE(std::abs(exchanged.data[i] - want[i]), bound[i] * (1 + 0x1p-16)) << "seed " << seed << " element " << i;
      exchange.Add((exchanged.data[i] - want[i]) / unit);
      ring.Add((by_ring.data[i] - want[i]) / unit);
      symmetric.Add((by_symmetric.data[i] - want[i]) / unit);
      largest_bound = std::max(largest_bound, bound[i] / unit);
    }
  }
  std::cout << "world " << world << ", largest and rms error in 2^-24 of the sum of magnitudes";
  Report("exchange", exchange);
  Report("bf16_ring", ring);
  Report("bf16_rounded_once", symmetric);
  std::cout << "; formula at most " << largest_bound << std::endl;
  EXPECT_LE(exchange.rms(), ring.rms());
  EXPECT_LE(exchange.rms(), symmetric.rms());
  EXPECT_LE(exchange.largest, ring.largest);
  EXPECT_LE(exchange.largest, symmetric.largest);
}

}  // namespace
}  // namespace reprise::kernels
