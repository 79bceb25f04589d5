// Element types, and how elements are written. Free of Abseil, so that device code can include it.
#ifndef REPRISE_CORE_ELEMENT_H_
#define REPRISE_CORE_ELEMENT_H_

#include <bit>
#include <cstdint>

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

// How backward writes a gradient. Constants of one schedule.
enum class WriteMode : uint8_t { kAssign, kAdd };

// kByMicrobatch assigns if control.microbatch + position is 0 and adds otherwise; kAlwaysAssign is for gradients that
// are reduced once per step. Assigning never reads the old value. Padding is never touched.
enum class AccumulateMode : uint8_t { kByMicrobatch, kAlwaysAssign };

}  // namespace reprise

#endif  // REPRISE_CORE_ELEMENT_H_
