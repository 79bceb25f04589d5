// Storage types against float, which all arithmetic is done in.
#ifndef REPRISE_KERNELS_NUMERIC_H_
#define REPRISE_KERNELS_NUMERIC_H_

#include <cstdint>
#include <memory>
#include <type_traits>

#include "reprise/core/dtype.h"
#include "reprise/core/schedule.h"

namespace reprise::kernels {

// Elementwise loops convert this many elements at a time, on the stack.
inline constexpr int64_t kBlock = 1024;

// Working memory of one run; it holds anything.
inline std::unique_ptr<float[]> Floats(int64_t count) {
  return std::make_unique_for_overwrite<float[]>(static_cast<size_t>(count));
}

// `values` as floats: themselves, or converted into `buffer`.
template <class T>
const float* Load(const T* values, int64_t count, float* buffer) {
  if constexpr (std::is_same_v<T, float>) {
    return values;
  } else {
    for (int64_t i = 0; i < count; ++i) buffer[i] = static_cast<float>(values[i]);
    return buffer;
  }
}

// out[i] = values[i], or out[i] += values[i]. With kAssign, out is not read.
template <class T>
void Store(const float* values, int64_t count, WriteMode mode, T* out) {
  if (mode == WriteMode::kAssign) {
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(values[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(static_cast<float>(out[i]) + values[i]);
  }
}

// Calls body(T()) with the C++ type of a floating-point dtype.
template <class Body>
void WithFloatType(DType dtype, const Body& body) {
  if (dtype == DType::kBFloat16) {
    body(BFloat16());
  } else {
    body(float());
  }
}

}  // namespace reprise::kernels

// Instantiates MACRO(T, G) for the activation and parameter gradient dtypes that exist together.
#define REPRISE_FOR_ACTIVATION_AND_GRADIENT(MACRO) \
  MACRO(float, float)                              \
  MACRO(BFloat16, BFloat16)                        \
  MACRO(BFloat16, float)

#endif  // REPRISE_KERNELS_NUMERIC_H_
