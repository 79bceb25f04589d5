#include "reprise/core/stack_model.h"

#include "absl/strings/str_cat.h"

namespace reprise {

absl::StatusOr<Model> StackModel(int units, const Shape& parameter_shape, DType dtype, int64_t tokens) {
  // One call more than units: that of the loss.
  if (units < 1 || units >= kMaxModelItems) {
    return absl::InvalidArgumentError(
        absl::StrCat("a stack of ", units, " units; give at least 1 and at most ", kMaxModelItems - 1));
  }
  if (parameter_shape.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("a stack of parameters of rank ", parameter_shape.size(), "; give a shape {rows, columns}"));
  }
  const int64_t rows = parameter_shape[0];
  const int64_t columns = parameter_shape[1];
  ModelBuilder builder;
  TensorId x = builder.AddInput({.name = "x", .shape = {tokens, columns}, .dtype = dtype});
  for (int i = 0; i < units; ++i) {
    const UnitId unit = builder.AddUnit(absl::StrCat("u", i));
    builder.AddParameter(unit, {.name = absl::StrCat("u", i, ".weight"), .shape = parameter_shape, .dtype = dtype});
    const TensorId y = builder.AddActivation({.name = absl::StrCat("y", i), .shape = {tokens, rows}, .dtype = dtype});
    builder.AddCall({.name = absl::StrCat("c", i), .units = {unit}, .inputs = {x}, .outputs = {y}, .saved = {x}});
    x = y;
  }
  const TensorId loss = builder.AddOutput({.name = "loss", .shape = {}, .dtype = DType::kFloat32});
  builder.AddCall({.name = "loss", .inputs = {x}, .outputs = {loss}, .saved = {x}});
  builder.SetLoss(loss);
  return builder.Build();
}

}  // namespace reprise
