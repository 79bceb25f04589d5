// Values in another dtype.
#ifndef REPRISE_KERNELS_CAST_H_
#define REPRISE_KERNELS_CAST_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/core/dtype.h"
#include "reprise/core/stream.h"

namespace reprise::kernels {

// to[i] = from[i] for `count` elements, rounded to nearest even. Dtypes are f32 and bf16; the ranges may not overlap.
absl::Status Cast(Stream stream, DType from_dtype, const void* from, DType to_dtype, void* to, int64_t count);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_CAST_H_
