// Element types of parameters, tensors and buffers.
#ifndef REPRISE_CORE_DTYPE_H_
#define REPRISE_CORE_DTYPE_H_

#include <bit>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace reprise {

enum class DType : uint8_t { kFloat32, kBFloat16, kInt32, kUInt8 };

// A bfloat16 value: the upper half of an IEEE-754 binary32. Storage only: arithmetic is done in float.
struct BFloat16 {
  uint16_t bits = 0;

  constexpr BFloat16() = default;
  // Rounds to nearest, ties to even. Every NaN becomes 0x7fff, as the conversion instructions of NVIDIA's devices have
  // it.
  constexpr explicit BFloat16(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) {
      bits = 0x7fff;
    } else {
      bits = static_cast<uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
    }
  }
  constexpr explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  friend constexpr bool operator==(BFloat16 a, BFloat16 b) { return float(a) == float(b); }
};

// Bytes of one element.
constexpr int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kBFloat16:
      return 2;
    case DType::kUInt8:
      return 1;
  }
  return 0;
}

constexpr bool IsFloatingPoint(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kBFloat16; }

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
