// Adds the received parts of a gradient to the accumulator.
#ifndef REPRISE_KERNELS_ACCUMULATE_H_
#define REPRISE_KERNELS_ACCUMULATE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "reprise/core/control_block.h"
#include "reprise/core/dtype.h"
#include "reprise/core/schedule.h"
#include "reprise/core/stream.h"

namespace reprise::kernels {

// A run of elements.
struct Segment {
  int64_t first = 0;
  int64_t count = 0;
};

struct ReduceAccumulateArguments {
  const ControlBlock* control = nullptr;  // read at replay
  int position = 0;                       // of the microbatch whose gradient this is; -1: the replay before's last one
  AccumulateMode mode = AccumulateMode::kByMicrobatch;
  DType wire_dtype = DType::kBFloat16;
  const void* parts = nullptr;  // one from each rank, in rank order; a reduced gradient is one part
  int num_parts = 1;
  int64_t part_stride = 0;  // elements from part to part
  float* accumulator = nullptr;
  std::vector<Segment> segments = {};  // of the accumulator and of each part; the rest is neither read nor written
};

// Sums the parts in float in rank order and assigns the sum to the accumulator, or adds it, as AccumulateMode says.
absl::Status ReduceAccumulate(Stream stream, ReduceAccumulateArguments arguments);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_ACCUMULATE_H_
