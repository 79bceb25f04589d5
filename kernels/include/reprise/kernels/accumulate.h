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
#include "reprise/kernels/command_arguments.h"

namespace reprise::kernels {

// accumulator[i] = or += the sum of the parts' element i, in float and in rank order, for each i of a segment; assigned
// or added as AccumulateMode says. Parts are f32 or bf16.
//
// For the step's last microbatch, and with kAlwaysAssign, also assigns each range's sum of squares of the accumulator's
// new values, in double, 0 where no segment is. A square of a finite float is finite in double, and so is the sum of
// fewer than 2^700 of them: a partial norm is finite if and only if all values are, and no other flag is needed.
absl::Status ReduceAccumulate(Stream stream, ReduceAccumulateArguments arguments);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_ACCUMULATE_H_
