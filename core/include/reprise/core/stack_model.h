// A ready-made model of equal units, for planning studies and benchmarks.
#ifndef REPRISE_CORE_STACK_MODEL_H_
#define REPRISE_CORE_STACK_MODEL_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "reprise/core/model.h"

namespace reprise {

// A stack of linear maps: units "u0", "u1", ... with one parameter each ("u0.weight", ...) and calls "c0", "c1", ...,
// each with one unit. Call i reads "x" (i = 0, an input) or "y<i-1>", saves it, and writes the activation "y<i>"; a
// last call "loss" without a unit reads and saves the last activation and writes the loss, "loss".
//
// `parameter_shape` is {rows, columns}: "x" is [tokens, columns] and every activation is [tokens, rows], all of
// `dtype`. Empty tensors are legal (tokens 0). InvalidArgument for units below 1 or not below kMaxModelItems, another
// rank than 2, a negative or overflowing size, or a dtype that is not floating-point.
absl::StatusOr<Model> StackModel(int units, const Shape& parameter_shape, DType dtype, int64_t tokens);

}  // namespace reprise

#endif  // REPRISE_CORE_STACK_MODEL_H_
