// Adds the received parts of a gradient to the accumulator, and takes the norm of the sum.
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
  const void* parts = nullptr;  // of the ranks, in their order; a reduced gradient is one part
  int num_parts = 1;
  // If set: one more part, which lies by itself and stands before parts[own_place] in the order.
  const void* own = nullptr;
  int own_place = 0;
  int64_t elements = 0;  // of the accumulator and of each part
  float* accumulator = nullptr;
  // Of the accumulator and of each part, in order and apart; the rest is neither read nor written.
  std::vector<Segment> segments = {};
  double* norm_partials = nullptr;  // NormRanges(elements)
  // Matrix products run meanwhile: a device leaves them all multiprocessors but a few where that costs less time. No
  // result depends on it.
  bool beside_compute = false;
};

// Sums the parts in float in rank order and assigns the sum to the accumulator, or adds it, as AccumulateMode says.
//
// For the step's last microbatch, and with kAlwaysAssign, also assigns each range's sum of squares of the accumulator's
// new values, in double, 0 where no segment is. A square of a finite float is finite in double, and so is the sum of
// fewer than 2^700 of them: a partial norm is finite if and only if all values are, and no other flag is needed.
absl::Status ReduceAccumulate(Stream stream, ReduceAccumulateArguments arguments);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_ACCUMULATE_H_
