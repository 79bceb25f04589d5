#include "reprise/kernels/accumulate.h"

#include <algorithm>
#include <utility>

#include "kernels/checks.h"
#include "kernels/device_kernels.h"
#include "kernels/numeric.h"
#include "kernels/parallel.h"
#include "reprise/core/norm_ranges.h"
#include "reprise/core/status_macros.h"

namespace reprise::kernels {
namespace {

// Read at replay: one recording serves every microbatch.
struct Moment {
  WriteMode mode = WriteMode::kAssign;
  bool is_last = true;  // of the step
};
Moment MomentOf(const ReduceAccumulateArguments& a) {
  switch (a.mode) {
    case AccumulateMode::kAlwaysAssign:
      return {};
    case AccumulateMode::kByMicrobatch: {
      const int64_t microbatch = a.control->microbatch + a.position;
      return {microbatch == 0 ? WriteMode::kAssign : WriteMode::kAdd, microbatch + 1 == a.control->microbatches};
    }
  }
  return {};
}

double SumOfSquares(const float* values, int64_t count) {
  // Independent sums, so that additions need not wait for each other.
  constexpr int64_t kSums = 8;
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

int NumParts(const ReduceAccumulateArguments& a) { return a.num_parts + (a.own == nullptr ? 0 : 1); }
// The n-th part in order.
template <class W>
const W* PartAt(const ReduceAccumulateArguments& a, int n) {
  if (a.own != nullptr && n == a.own_place) return static_cast<const W*>(a.own);
  const int before = a.own != nullptr && n > a.own_place ? n - 1 : n;
  return static_cast<const W*>(a.parts) + before * a.elements;
}

// Elements [begin, end). Returns the sum of their squares in the step's last microbatch, else 0.
template <class W>
double Accumulate(const ReduceAccumulateArguments& a, const Moment& moment, int64_t begin, int64_t end) {
  float sum[kBlock];
  double squares = 0;
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t n = std::min(kBlock, end - i);
    const W* first = PartAt<W>(a, 0) + i;
    for (int64_t j = 0; j < n; ++j) sum[j] = static_cast<float>(first[j]);
    for (int part = 1; part < NumParts(a); ++part) {
      const W* values = PartAt<W>(a, part) + i;
      for (int64_t j = 0; j < n; ++j) sum[j] += static_cast<float>(values[j]);
    }
    Store(sum, n, moment.mode, a.accumulator + i);
    if (moment.is_last) squares += SumOfSquares(a.accumulator + i, n);
  }
  return squares;
}

template <class W>
void AccumulateRange(const ReduceAccumulateArguments& a, const Moment& moment, int64_t range) {
  const int64_t begin = range * NormRangeElements(a.elements);
  const int64_t end = std::min(a.elements, begin + NormRangeElements(a.elements));
  auto segment = std::partition_point(a.segments.begin(), a.segments.end(),
                                      [&](const Segment& s) { return s.first + s.count <= begin; });
  double squares = 0;
  for (; segment != a.segments.end() && segment->first < end; ++segment) {
    squares +=
        Accumulate<W>(a, moment, std::max(begin, segment->first), std::min(end, segment->first + segment->count));
  }
  if (moment.is_last) a.norm_partials[range] = squares;
}

}  // namespace

absl::Status ReduceAccumulate(Stream stream, ReduceAccumulateArguments arguments) {
  Checks checks("ReduceAccumulate");
  int64_t end = 0;
  for (const Segment& segment : arguments.segments) {
    checks.AtLeast("first element of a segment", segment.first, end).AtLeast("count of a segment", segment.count, 0);
    end = segment.first + segment.count;
  }
  REPRISE_RETURN_IF_ERROR(
      checks.Address("control", arguments.control, arguments.mode == AccumulateMode::kByMicrobatch ? 1 : 0)
          .AtLeast("position", arguments.position, -1)
          .AtLeast("num_parts", arguments.num_parts, arguments.own == nullptr ? 1 : 0)
          .AtLeast("own_place", arguments.own_place, 0)
          .AtLeast("num_parts", arguments.num_parts, arguments.own_place)
          .AtLeast("elements", arguments.elements, end)
          .Address("parts", arguments.parts, arguments.num_parts == 0 ? 0 : end)
          .Address("accumulator", arguments.accumulator, end)
          .Address("norm_partials", arguments.norm_partials, arguments.elements)
          .FloatingPoint("reduce_dtype", arguments.reduce_dtype)
          .Done());
  return Enqueue(stream, &DeviceKernels::ReduceAccumulate, std::move(arguments),
                 [](const ReduceAccumulateArguments& a) {
                   const Moment moment = MomentOf(a);
                   WithFloatType(a.reduce_dtype, [&](auto type) {
                     const int64_t grain = std::max<int64_t>(1, kGrain / NormRangeElements(a.elements));
                     ParallelForRanges(NormRanges(a.elements), grain, [&](int64_t begin, int64_t end) {
                       for (int64_t range = begin; range < end; ++range)
                         AccumulateRange<decltype(type)>(a, moment, range);
                     });
                   });
                 });
}

}  // namespace reprise::kernels
