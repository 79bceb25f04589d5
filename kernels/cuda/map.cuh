// Kernels that treat every element alike.
#ifndef REPRISE_KERNELS_CUDA_MAP_CUH_
#define REPRISE_KERNELS_CUDA_MAP_CUH_

#include "kernels/cuda/elements.cuh"

namespace reprise::kernels {

inline constexpr int kMapThreads = 256;
// Packs that a thread has in flight, of each array: enough to keep the memory busy.
inline constexpr int kMapPacks = 4;

// How the elements of the second input follow those of the others.
enum class Second { kNone, kSame, kRepeats };

// a mod b for a >= 0, b > 0; 64-bit division is slow.
__device__ inline int64_t Modulo(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<uint32_t>(a) % static_cast<uint32_t>(b);
  return a % b;
}

// out = or += function(a, b), element by element. N elements make a pack; all addresses are those of packs. b repeats
// after b_packs packs. out may be a, or a b that does not repeat: a thread reads its elements before it writes them,
// and nobody else reads them.
template <int N, Second kSecond, class A, class Out, class Function>
__global__ void __launch_bounds__(kMapThreads)
    MapKernel(int64_t count, const A* a, const A* b, int64_t b_packs, Out* out, bool add, Function function) {
  const int64_t packs = count / N;
  constexpr int64_t kTile = kMapThreads * kMapPacks;
  for (int64_t tile = blockIdx.x * kTile; tile < packs; tile += gridDim.x * kTile) {
    const int64_t first = tile + threadIdx.x;
    Pack<A, N> a_packs[kMapPacks], b_values[kMapPacks];
    Pack<Out, N> old[kMapPacks];
#pragma unroll
    for (int p = 0; p < kMapPacks; ++p) {
      const int64_t i = first + p * kMapThreads;
      if (i >= packs) continue;
      a_packs[p] = LoadPack<N>(a + i * N);
      if constexpr (kSecond == Second::kSame) b_values[p] = LoadPack<N>(b + i * N);
      if constexpr (kSecond == Second::kRepeats) b_values[p] = LoadPack<N>(b + Modulo(i, b_packs) * N);
      if (add) old[p] = LoadPack<N>(out + i * N);
    }
#pragma unroll
    for (int p = 0; p < kMapPacks; ++p) {
      const int64_t i = first + p * kMapThreads;
      if (i >= packs) continue;
      float values[N];
#pragma unroll
      for (int e = 0; e < N; ++e) {
        float value;
        if constexpr (kSecond == Second::kNone) {
          value = function(ToFloat(a_packs[p].elements[e]));
        } else {
          value = function(ToFloat(a_packs[p].elements[e]), ToFloat(b_values[p].elements[e]));
        }
        values[e] = add ? ToFloat(old[p].elements[e]) + value : value;
      }
      StorePack(out + i * N, ToPack<Out>(values));
    }
  }
  const int64_t i = packs * N + threadIdx.x;
  if (blockIdx.x == 0 && i < count) {
    float value;
    if constexpr (kSecond == Second::kNone) {
      value = function(ToFloat(a[i]));
    } else {
      value = function(ToFloat(a[i]), ToFloat(b[i]));
    }
    out[i] = FromFloat<Out>(add ? ToFloat(out[i]) + value : value);
  }
}

template <int N, Second kSecond, class A, class Out, class Function>
cudaError_t LaunchMapKernel(cudaStream_t stream, int64_t count, const A* a, const A* b, int64_t b_count, Out* out,
                            bool add, const Function& function) {
  const int64_t tiles = CeilDivide(count, int64_t{N} * kMapThreads * kMapPacks);
  return Launch(stream, Blocks(tiles), kMapThreads, 0, MapKernel<N, kSecond, A, Out, Function>, count, a, b,
                b_count / N, out, add, function);
}

// Takes 16 bytes at a time of the wider type where the addresses allow.
template <Second kSecond, class A, class Out, class Function>
cudaError_t Map(cudaStream_t stream, int64_t count, const A* a, const A* b, int64_t b_count, Out* out, bool add,
                const Function& function) {
  constexpr int N = kPerVector<A> < kPerVector<Out> ? kPerVector<A> : kPerVector<Out>;
  if (IsAligned<N>(a) && IsAligned<N>(b) && IsAligned<N>(out) && (kSecond != Second::kRepeats || b_count % N == 0)) {
    return LaunchMapKernel<N, kSecond>(stream, count, a, b, b_count, out, add, function);
  }
  return LaunchMapKernel<1, kSecond>(stream, count, a, b, b_count, out, add, function);
}

template <class Function>
cudaError_t MapOne(cudaStream_t stream, int64_t count, DeviceInput a, DeviceOutput out, const Function& function) {
  return WithElement(out.dtype, [&](auto type) {
    using T = decltype(type);
    return Map<Second::kNone, T, T>(stream, count, a.as<T>(), nullptr, 0, out.as<T>(), out.add(), function);
  });
}

template <class Function>
cudaError_t MapTwo(cudaStream_t stream, int64_t count, DeviceInput a, DeviceInput b, DeviceOutput out,
                   const Function& function) {
  return WithElement(out.dtype, [&](auto type) {
    using T = decltype(type);
    return Map<Second::kSame, T, T>(stream, count, a.as<T>(), b.as<T>(), count, out.as<T>(), out.add(), function);
  });
}

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_CUDA_MAP_CUH_
