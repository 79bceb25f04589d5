// What ModelBuilder::Build checks.
#ifndef REPRISE_CORE_MODEL_MODEL_VALIDATION_H_
#define REPRISE_CORE_MODEL_MODEL_VALIDATION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/core/model.h"

namespace reprise::internal {

inline constexpr int64_t kMaxNameBytes = 256;
// Bytes of all tensors and scratch of a model together, and of any one parameter: leaves room for sums.
inline constexpr int64_t kMaxModelBytes = int64_t{1} << 62;

// OK, or InvalidArgument with the first mistake: units come first, then parameters, tensors, calls (each in its order)
// and the loss. Unit ids of parameters, and the loss if valid, must be in range; other ids may be anything.
absl::Status ValidateModel(const Model& model);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_MODEL_MODEL_VALIDATION_H_
