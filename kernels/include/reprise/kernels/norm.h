// Sums of squares.
#ifndef REPRISE_KERNELS_NORM_H_
#define REPRISE_KERNELS_NORM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/core/schedule.h"
#include "reprise/core/stream.h"

namespace reprise::kernels {

// *result = the sum of values[i]^2, or += with kAdd; in double and in an order that depends on count alone.
absl::Status SquaredNorm(Stream stream, const float* values, int64_t count, double* result,
                         WriteMode mode = WriteMode::kAssign);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_NORM_H_
