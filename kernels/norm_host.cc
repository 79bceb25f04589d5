#include "reprise/kernels/norm.h"

#include <vector>

#include "kernels/checks.h"
#include "kernels/device_kernels.h"
#include "kernels/parallel.h"
#include "reprise/core/status_macros.h"

namespace reprise::kernels {
namespace {

// Independent sums, so that additions need not wait for each other.
constexpr int64_t kSums = 8;

double RangeSquaredNorm(const float* values, int64_t count) {
  double sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int64_t j = 0; j < kSums; ++j) sums[j] += static_cast<double>(values[i + j]) * values[i + j];
  }
  for (int64_t j = 0; i < count; ++i, ++j) sums[j] += static_cast<double>(values[i]) * values[i];
  double total = 0;
  for (double sum : sums) total += sum;
  return total;
}

}  // namespace

absl::Status SquaredNorm(Stream stream, const float* values, int64_t count, double* result, WriteMode mode) {
  REPRISE_RETURN_IF_ERROR(Checks("SquaredNorm")
                              .AtLeast("count", count, 0)
                              .Address("values", values, count)
                              .Address("result", result)
                              .Done());
  if (!stream.is_host()) return stream.device_kernels().SquaredNorm(values, count, result, mode);
  stream.host_queue().Enqueue([=] {
    std::vector<double> sums((count + kGrain - 1) / kGrain);
    ParallelForRanges(count, kGrain, [&](int64_t begin, int64_t end) {
      sums[begin / kGrain] = RangeSquaredNorm(values + begin, end - begin);
    });
    double total = 0;
    for (double sum : sums) total += sum;
    *result = mode == WriteMode::kAdd ? *result + total : total;
  });
  return absl::OkStatus();
}

}  // namespace reprise::kernels
