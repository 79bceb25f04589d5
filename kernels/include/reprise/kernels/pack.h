// Gradients on their way into a reduce buffer.
#ifndef REPRISE_KERNELS_PACK_H_
#define REPRISE_KERNELS_PACK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/core/dtype.h"
#include "reprise/core/stream.h"
#include "reprise/kernels/command_arguments.h"

namespace reprise::kernels {

// reduce_buffer[reduce_element + r columns + c] = gradient[r row_stride + c], rounded to nearest even; no other element
// of the reduce buffer is written. Dtypes are f32 and bf16.
absl::Status Pack(Stream stream, const PackArguments& arguments);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_PACK_H_
