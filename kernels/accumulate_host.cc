#include "reprise/kernels/accumulate.h"

#include <utility>

#include "kernels/checks.h"
#include "kernels/device_kernels.h"
#include "kernels/numeric.h"
#include "kernels/parallel.h"
#include "reprise/core/status_macros.h"

namespace reprise::kernels {
namespace {

// Read at replay: one recording serves every microbatch.
WriteMode ModeOf(const ReduceAccumulateArguments& a) {
  switch (a.mode) {
    case AccumulateMode::kAlwaysAssign:
      return WriteMode::kAssign;
    case AccumulateMode::kByMicrobatch:
      return a.control->microbatch + a.position == 0 ? WriteMode::kAssign : WriteMode::kAdd;
  }
  return WriteMode::kAssign;
}

template <class W>
void Accumulate(const ReduceAccumulateArguments& a, WriteMode mode, int64_t first, int64_t count) {
  const W* parts = static_cast<const W*>(a.parts) + first;
  ParallelForRanges(count, kGrain, [&](int64_t begin, int64_t end) {
    float sum[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      for (int64_t j = 0; j < n; ++j) sum[j] = static_cast<float>(parts[i + j]);
      for (int part = 1; part < a.num_parts; ++part) {
        const W* values = parts + part * a.part_stride + i;
        for (int64_t j = 0; j < n; ++j) sum[j] += static_cast<float>(values[j]);
      }
      Store(sum, n, mode, a.accumulator + first + i);
    }
  });
}

}  // namespace

absl::Status ReduceAccumulate(Stream stream, ReduceAccumulateArguments arguments) {
  Checks checks("ReduceAccumulate");
  int64_t end = 0;
  for (const Segment& segment : arguments.segments) {
    checks.AtLeast("first element of a segment", segment.first, 0).AtLeast("count of a segment", segment.count, 0);
    end = std::max(end, segment.first + segment.count);
  }
  REPRISE_RETURN_IF_ERROR(
      checks.Address("control", arguments.control, arguments.mode == AccumulateMode::kByMicrobatch ? 1 : 0)
          .AtLeast("num_parts", arguments.num_parts, 1)
          .AtLeast("part_stride", arguments.part_stride, arguments.num_parts > 1 ? end : 0)
          .Address("parts", arguments.parts, end)
          .Address("accumulator", arguments.accumulator, end)
          .FloatingPoint("wire_dtype", arguments.wire_dtype)
          .Done());
  if (!stream.is_host()) return stream.device_kernels().ReduceAccumulate(arguments);
  stream.host_queue().Enqueue([a = std::move(arguments)] {
    const WriteMode mode = ModeOf(a);
    WithFloatType(a.wire_dtype, [&](auto type) {
      for (const Segment& segment : a.segments) Accumulate<decltype(type)>(a, mode, segment.first, segment.count);
    });
  });
  return absl::OkStatus();
}

}  // namespace reprise::kernels
