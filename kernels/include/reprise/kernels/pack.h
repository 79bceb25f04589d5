// Gradients on their way into a wire buffer.
#ifndef REPRISE_KERNELS_PACK_H_
#define REPRISE_KERNELS_PACK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/core/dtype.h"
#include "reprise/core/stream.h"

namespace reprise::kernels {

struct PackArguments {
  DType gradient_dtype = DType::kFloat32;
  const void* gradient = nullptr;  // `rows` rows of `columns` elements, `row_stride` elements apart
  int64_t rows = 1;
  int64_t columns = 0;
  int64_t row_stride = 0;
  DType wire_dtype = DType::kBFloat16;
  void* wire = nullptr;
  int64_t wire_element = 0;  // where the gradient starts in the wire buffer, dense from there
};

// Casts the gradient into the wire buffer; writes no other element of it.
absl::Status Pack(Stream stream, const PackArguments& arguments);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_PACK_H_
