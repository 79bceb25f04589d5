#include "reprise/core/dtype.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/model/quoted.h"

namespace reprise {

absl::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "f32";
    case DType::kBFloat16:
      return "bf16";
    case DType::kInt32:
      return "i32";
    case DType::kUInt8:
      return "u8";
  }
  return "unknown";
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt32, DType::kUInt8}) {
    if (Name(dtype) == name) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown dtype ", internal::Quoted(name), "; use one of \"f32\", \"bf16\", \"i32\", \"u8\""));
}

}  // namespace reprise
