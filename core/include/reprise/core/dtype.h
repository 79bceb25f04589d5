// Element types of parameters, tensors and buffers: their names, and those of C++.
#ifndef REPRISE_CORE_DTYPE_H_
#define REPRISE_CORE_DTYPE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "reprise/core/element.h"

namespace reprise {

// "f32", "bf16", "i32", "u8": the names in model files, plan text and messages.
absl::string_view Name(DType dtype);
// The reverse of Name. InvalidArgument, listing the names, for any other text.
absl::StatusOr<DType> ParseDType(absl::string_view name);

// The DType of a C++ element type; only the four below exist.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kFloat32;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::kBFloat16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kInt32;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kUInt8;
};

}  // namespace reprise

#endif  // REPRISE_CORE_DTYPE_H_
