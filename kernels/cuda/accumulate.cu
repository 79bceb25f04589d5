// The sum of a gradient's parts, into the accumulator.
#include "kernels/cuda/elements.cuh"

namespace reprise::kernels {
namespace {

constexpr int kThreads = 256;
// Packs that a thread has in flight, of each of two parts.
constexpr int kPacks = 2;
// Elements of a pack: 16 bytes of the accumulator.
constexpr int kPack = 4;
constexpr int64_t kTile = int64_t{kThreads} * kPacks * kPack;

struct Tiles {
  int num_segments;
  int64_t first[kMaxSegments];
  int64_t count[kMaxSegments];
  int64_t before[kMaxSegments + 1];  // tiles of the segments before it
};

template <class W>
struct Arguments {
  const ControlBlock* control;
  int position;
  const W* parts;
  int num_parts;
  int64_t part_stride;
  float* accumulator;
};

// Elements [first, first + count), where packs of N lie at pack addresses.
template <int N, class W>
__device__ void AccumulateRange(const Arguments<W>& a, int64_t first, int64_t count, bool add) {
  const int64_t packs = count / N;
  const W* parts = a.parts + first;
  float* accumulator = a.accumulator + first;
  for (int64_t base = 0; base < packs; base += kThreads * kPacks) {
    float sums[kPacks][N];
    Pack<W, N> current[kPacks], next[kPacks];
    Pack<float, N> old[kPacks];
    const auto load = [&](int part, Pack<W, N>(&values)[kPacks]) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int64_t i = base + p * kThreads + threadIdx.x;
        if (i < packs) values[p] = LoadPack<N>(parts + part * a.part_stride + i * N);
      }
    };
    load(0, current);
    if (add) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int64_t i = base + p * kThreads + threadIdx.x;
        if (i < packs) old[p] = LoadPack<N>(accumulator + i * N);
      }
    }
    for (int part = 0; part < a.num_parts; ++part) {
      if (part + 1 < a.num_parts) load(part + 1, next);
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
#pragma unroll
        for (int e = 0; e < N; ++e) {
          const float value = ToFloat(current[p].elements[e]);
          sums[p][e] = part == 0 ? value : sums[p][e] + value;
        }
        current[p] = next[p];
      }
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t i = base + p * kThreads + threadIdx.x;
      if (i >= packs) continue;
      Pack<float, N> result;
#pragma unroll
      for (int e = 0; e < N; ++e) result.elements[e] = add ? old[p].elements[e] + sums[p][e] : sums[p][e];
      StorePack(accumulator + i * N, result);
    }
  }
}

template <class W>
__global__ void __launch_bounds__(kThreads, 3) AccumulateKernel(Arguments<W> a, Tiles tiles) {
  const bool add = a.control != nullptr && a.control->microbatch + a.position != 0;
  int segment = 0;
  for (int64_t tile = blockIdx.x; tile < tiles.before[tiles.num_segments]; tile += gridDim.x) {
    while (tile >= tiles.before[segment + 1]) ++segment;
    const int64_t begin = (tile - tiles.before[segment]) * kTile;
    const int64_t first = tiles.first[segment] + begin;
    const int64_t left = tiles.count[segment] - begin, count = left < kTile ? left : kTile;
    const uint64_t addresses = reinterpret_cast<uint64_t>(a.parts + first) * (sizeof(float) / sizeof(W)) |
                               reinterpret_cast<uint64_t>(a.accumulator + first);
    const bool aligned =
        addresses % sizeof(Pack<float, kPack>) == 0 && (a.num_parts == 1 || a.part_stride % kPack == 0);
    const int64_t in_packs = aligned ? count / kPack * kPack : 0;
    if (in_packs > 0) AccumulateRange<kPack>(a, first, in_packs, add);
    if (in_packs < count) AccumulateRange<1>(a, first + in_packs, count - in_packs, add);
  }
}

}  // namespace

cudaError_t LaunchAccumulate(cudaStream_t stream, const AccumulateLaunch& arguments) {
  Tiles tiles = {};
  tiles.num_segments = arguments.num_segments;
  for (int s = 0; s < arguments.num_segments; ++s) {
    tiles.first[s] = arguments.first[s];
    tiles.count[s] = arguments.count[s];
    tiles.before[s + 1] = tiles.before[s] + CeilDivide(arguments.count[s], kTile);
  }
  return WithElement(arguments.parts.element, [&](auto type) {
    using W = decltype(type);
    const Arguments<W> a = {arguments.control,   arguments.position,    static_cast<const W*>(arguments.parts.data),
                            arguments.num_parts, arguments.part_stride, arguments.accumulator};
    return Launch(stream, Blocks(tiles.before[tiles.num_segments]), kThreads, 0, AccumulateKernel<W>, a, tiles);
  });
}

}  // namespace reprise::kernels
