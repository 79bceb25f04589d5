// Elements on the device: their types, loads and stores of several at once, and how kernels are launched.
#ifndef REPRISE_KERNELS_CUDA_ELEMENTS_CUH_
#define REPRISE_KERNELS_CUDA_ELEMENTS_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "kernels/cuda/launch.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "reprise needs CMAKE_CUDA_ARCHITECTURES of 80 or later, whose instructions convert to bfloat16"
#endif

namespace reprise::kernels {

// The bits of reprise::BFloat16, whose conversions are host code.
struct BFloat16Bits {
  uint16_t bits;
};

__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(BFloat16Bits value) { return __uint_as_float(static_cast<uint32_t>(value.bits) << 16); }

// Rounds as BFloat16(float) does, bit for bit, in one instruction.
template <class T>
__device__ T FromFloat(float value) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return value;
  } else {
    T result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    return result;
  }
}

// N elements that are loaded and stored together.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T elements[N];
};
template <int N, class T>
__device__ Pack<T, N> LoadPack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <class T, int N>
__device__ void StorePack(T* to, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// Rounds as FromFloat does, of bfloat16 two values in one instruction.
template <class T, int N>
__device__ Pack<T, N> ToPack(const float (&values)[N]) {
  Pack<T, N> pack;
  if constexpr (sizeof(T) == sizeof(float) || N == 1) {
#pragma unroll
    for (int i = 0; i < N; ++i) pack.elements[i] = FromFloat<T>(values[i]);
  } else {
    static_assert(N % 2 == 0);
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      uint32_t pair;
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(values[i + 1]), "f"(values[i]));
      memcpy(&pack.elements[i], &pair, sizeof(pair));
    }
  }
  return pack;
}

// Elements of 16 bytes.
template <class T>
inline constexpr int kPerVector = 16 / static_cast<int>(sizeof(T));

// Elements [first, first + N) of a row of `count`, as floats; 0 past its end. kAligned: first and count are multiples
// of N and the row's address is one of N elements. Which elements a thread gets is the same either way, so that sums
// over them are too.
template <int N, bool kAligned, class T>
__device__ void LoadFloats(const T* row, int64_t first, int64_t count, float (&values)[N]) {
  if constexpr (kAligned) {
    const Pack<T, N> pack = LoadPack<N>(row + first);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = ToFloat(pack.elements[i]);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = first + i < count ? ToFloat(row[first + i]) : 0.0f;
  }
}

// Assigns or adds what LoadFloats would load.
template <int N, bool kAligned, class T>
__device__ void StoreFloats(const float (&values)[N], int64_t first, int64_t count, bool add, T* row) {
  if constexpr (kAligned) {
    float sums[N];
    Pack<T, N> old;
    if (add) old = LoadPack<N>(row + first);
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i] = add ? ToFloat(old.elements[i]) + values[i] : values[i];
    StorePack(row + first, ToPack<T>(sums));
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (first + i < count) {
        row[first + i] = FromFloat<T>(add ? ToFloat(row[first + i]) + values[i] : values[i]);
      }
    }
  }
}

// ---- host side ----

// The address is a multiple of N elements.
template <int N, class T>
bool IsAligned(const T* address) {
  return reinterpret_cast<uintptr_t>(address) % alignof(Pack<T, N>) == 0;
}

inline int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t Smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Blocks of one launch along x; kernels stride over what is more.
inline constexpr int64_t kMaxBlocks = 1 << 20;

template <class... Parameters, class... Arguments>
cudaError_t Launch(cudaStream_t stream, dim3 blocks, dim3 threads, int64_t shared_bytes, void (*kernel)(Parameters...),
                   const Arguments&... arguments) {
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return cudaSuccess;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

inline dim3 Blocks(int64_t count) { return dim3(static_cast<unsigned>(Smaller(count, kMaxBlocks))); }

// Calls body(T()) with the type of the elements of a floating-point dtype.
template <class Body>
cudaError_t WithElement(DType dtype, const Body& body) {
  return dtype == DType::kFloat32 ? body(float()) : body(BFloat16Bits());
}

// Calls body(T(), G()) for an activation and a parameter gradient: of one type, or the gradient in float.
template <class Body>
cudaError_t WithElements(DType activation, DType gradient, const Body& body) {
  if (activation == DType::kFloat32) return body(float(), float());
  return gradient == DType::kFloat32 ? body(BFloat16Bits(), float()) : body(BFloat16Bits(), BFloat16Bits());
}

// Calls body(std::bool_constant) with a compile-time value.
template <bool kValue>
struct Constant {
  static constexpr bool value = kValue;
};
template <class Body>
cudaError_t WithConstant(bool value, const Body& body) {
  return value ? body(Constant<true>()) : body(Constant<false>());
}

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_CUDA_ELEMENTS_CUH_
