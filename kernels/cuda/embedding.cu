// Rows of a table by id. Backward sorts the positions of the ids by id and then by position, so that one block sums the
// rows of one entry in order and no atomic is needed.
#include "kernels/cuda/elements.cuh"

namespace reprise::kernels {
namespace {

// A row is handled by one warp.
constexpr int kLanes = 32, kRows = 8;

template <int N, bool kAligned, class T>
__global__ void __launch_bounds__(kLanes* kRows)
    EmbeddingKernel(int64_t count, int64_t entries, int64_t width, const int32_t* ids, const T* table, T* y) {
  const int64_t packs = (width + N - 1) / N;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.y; i < count;
       i += static_cast<int64_t>(gridDim.x) * kRows) {
    const int64_t id = ids[i];
    const bool valid = id >= 0 && id < entries;
    for (int64_t pack = threadIdx.x; pack < packs; pack += kLanes) {
      float values[N];
#pragma unroll
      for (int e = 0; e < N; ++e) values[e] = __int_as_float(0x7fc00000);
      if (valid) LoadFloats<N, kAligned>(table + id * width, pack * N, width, values);
      StoreFloats<N, kAligned>(values, pack * N, width, /*add=*/false, y + i * width);
    }
  }
}

// What an id sorts by; all ids out of range come last.
constexpr uint32_t kOutOfRange = 0xffffffffu;
__device__ uint32_t KeyOf(int32_t id, int64_t entries) {
  return id >= 0 && id < entries ? static_cast<uint32_t>(id) : kOutOfRange;
}

// Position i of the ids comes at the place that is the number of positions before it in the order. A block finds the
// places of kSorted positions; each of its warps counts a share of all positions for them.
constexpr int kSorted = 32, kSharers = 16;
__global__ void __launch_bounds__(kSorted* kSharers)
    SortIdsKernel(int64_t count, int64_t entries, const int32_t* ids, uint32_t* keys, int32_t* positions) {
  constexpr int kTile = kSorted * kSharers;
  __shared__ uint32_t tile[kTile];
  __shared__ int counts[kSharers][kSorted];
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kSorted + threadIdx.x;
  const uint32_t key = i < count ? KeyOf(ids[i], entries) : 0;
  int before = 0;
  for (int64_t start = 0; start < count; start += kTile) {
    const int rank = threadIdx.y * kSorted + threadIdx.x;
    if (start + rank < count) tile[rank] = KeyOf(ids[start + rank], entries);
    __syncthreads();
    const int size = static_cast<int>(count - start < kTile ? count - start : kTile);
    for (int j = threadIdx.y; j < size; j += kSharers) {
      const uint32_t other = tile[j];
      before += other < key || (other == key && start + j < i);
    }
    __syncthreads();
  }
  counts[threadIdx.y][threadIdx.x] = before;
  __syncthreads();
  if (threadIdx.y != 0 || i >= count) return;
  for (int sharer = 1; sharer < kSharers; ++sharer) before += counts[sharer][threadIdx.x];
  keys[before] = key;
  positions[before] = static_cast<int32_t>(i);
}

constexpr int kSumThreads = 128;

// Rows of the table that no id uses, when assigning.
template <class G>
__global__ void __launch_bounds__(kSumThreads) ZeroKernel(int64_t count, G* values) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kSumThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x; i < count; i += threads) {
    values[i] = G{};
  }
}

// Block (p, c): if the sorted place p is the first of its entry, sums columns c of the entry's rows.
template <int N, bool kAligned, class T, class G>
__global__ void __launch_bounds__(kSumThreads)
    SumRowsByEntryKernel(int64_t count, int64_t width, const T* dy, const uint32_t* keys, const int32_t* positions,
                         G* dtable, bool add) {
  const int64_t place = blockIdx.x;
  const uint32_t key = keys[place];
  if (key == kOutOfRange || (place > 0 && keys[place - 1] == key)) return;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kSumThreads + threadIdx.x) * N;
  if (column >= width) return;
  float sums[N] = {};
  // Several rows are loaded at a time; they are added in order.
  constexpr int kAtOnce = 4;
  for (int64_t p = place; p < count && keys[p] == key; p += kAtOnce) {
    float values[kAtOnce][N] = {};
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (p + k >= count || keys[p + k] != key) continue;
      LoadFloats<N, kAligned>(dy + positions[p + k] * width, column, width, values[k]);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
      for (int e = 0; e < N; ++e) sums[e] += values[k][e];
    }
  }
  StoreFloats<N, kAligned>(sums, column, width, add, dtable + static_cast<int64_t>(key) * width);
}

}  // namespace

cudaError_t LaunchEmbedding(const LaunchPlace& place, const EmbeddingArguments& a) {
  return WithElement(a.y.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = kPerVector<T>;
    const T* from = a.table.as<T>();
    T* out = a.y.as<T>();
    return WithConstant(a.width % N == 0 && IsAligned<N>(from) && IsAligned<N>(out), [&](auto aligned) {
      return Launch(place.stream, Blocks(CeilDivide(a.count, kRows)), dim3(kLanes, kRows), 0,
                    EmbeddingKernel<N, decltype(aligned)::value, T>, a.count, a.entries, a.width, a.ids, from, out);
    });
  });
}

cudaError_t LaunchEmbeddingBackward(const LaunchPlace& place, const EmbeddingBackwardArguments& a) {
  uint32_t* keys = place.Workspace<uint32_t>();
  int32_t* positions = place.Workspace<int32_t>() + a.count;
  return WithElements(a.dy.dtype, a.dtable.dtype, [&](auto type, auto table_type) {
    using T = decltype(type);
    using G = decltype(table_type);
    constexpr int N = 4;
    const T* rows = a.dy.as<T>();
    G* out = a.dtable.as<G>();
    cudaError_t error = cudaSuccess;
    if (!a.dtable.add()) {
      error = Launch(place.stream, Blocks(CeilDivide(a.entries * a.width, kSumThreads)), kSumThreads, 0, ZeroKernel<G>,
                     a.entries * a.width, out);
    }
    if (error != cudaSuccess || a.count == 0) return error;
    error = Launch(place.stream, dim3(static_cast<unsigned>(CeilDivide(a.count, kSorted))), dim3(kSorted, kSharers), 0,
                   SortIdsKernel, a.count, a.entries, a.ids, keys, positions);
    if (error != cudaSuccess) return error;
    return WithConstant(a.width % N == 0 && IsAligned<N>(rows) && IsAligned<N>(out), [&](auto aligned) {
      const dim3 blocks(static_cast<unsigned>(a.count),
                        static_cast<unsigned>(CeilDivide(a.width, int64_t{kSumThreads} * N)));
      return Launch(place.stream, blocks, kSumThreads, 0, SumRowsByEntryKernel<N, decltype(aligned)::value, T, G>,
                    a.count, a.width, rows, keys, positions, out, a.dtable.add());
    });
  });
}

}  // namespace reprise::kernels
