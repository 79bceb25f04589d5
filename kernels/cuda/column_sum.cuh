// Sums over the rows of a matrix. Rows are summed in ranges of fixed size, and the ranges in order.
#ifndef REPRISE_KERNELS_CUDA_COLUMN_SUM_CUH_
#define REPRISE_KERNELS_CUDA_COLUMN_SUM_CUH_

#include "kernels/cuda/elements.cuh"

namespace reprise::kernels {

// A block is 32 packs of columns wide; its 8 lanes take turns at the rows.
inline constexpr int kColumnPacks = 32;
inline constexpr int kRowLanes = 8;

// Sums of lane 0 to kRowLanes - 1, in this order; valid where threadIdx.y == 0. All threads of the block call it.
template <int N>
__device__ void SumLanes(float (&sums)[N]) {
  __shared__ float lanes[kRowLanes][N][kColumnPacks];
#pragma unroll
  for (int i = 0; i < N; ++i) lanes[threadIdx.y][i][threadIdx.x] = sums[i];
  __syncthreads();
  if (threadIdx.y != 0) return;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    for (int lane = 1; lane < kRowLanes; ++lane) sums[i] += lanes[lane][i][threadIdx.x];
  }
}

// Block (x, y) sums range y of the rows: out[y * columns + c] for each c < columns. With one range, all of out is
// assigned or added to, out_count elements. load(row, first column, values) gives N columns of a row, 0 past the last.
template <int N, class Load, class Out>
__global__ void __launch_bounds__(kColumnPacks* kRowLanes)
    SumRowsKernel(int64_t rows, int64_t columns, int64_t range_rows, Load load, int64_t out_count, Out* out, bool add) {
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kColumnPacks + threadIdx.x) * N;
  const int64_t begin = blockIdx.y * range_rows;
  const int64_t end = begin + range_rows < rows ? begin + range_rows : rows;
  float sums[N] = {};
  if (column < columns) {
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += kRowLanes) {
      float values[N];
      load(row, column, values);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += values[i];
    }
  }
  SumLanes(sums);
  if (threadIdx.y == 0) StoreFloats<N, false>(sums, column, out_count, add, out + blockIdx.y * columns);
}

template <class Out>
__global__ void __launch_bounds__(kColumnPacks* kRowLanes)
    SumRangesKernel(int ranges, int64_t columns, const float* range_sums, int64_t out_count, Out* out, bool add) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumnPacks + threadIdx.x;
  float sum[1] = {};
  if (column < columns) {
#pragma unroll 8
    for (int range = threadIdx.y; range < ranges; range += kRowLanes) sum[0] += range_sums[range * columns + column];
  }
  SumLanes(sum);
  if (threadIdx.y == 0) StoreFloats<1, false>(sum, column, out_count, add, out);
}

// Takes kColumnSumBytes of the workspace.
template <int N, class Load, class Out>
cudaError_t SumRows(const LaunchPlace& place, int64_t rows, int64_t columns, const Load& load, int64_t out_count,
                    Out* out, bool add) {
  float* const workspace = place.Workspace<float>();
  constexpr int64_t kBlocksWanted = 512, kMaxRanges = 256, kMinRangeRows = 32;
  const dim3 threads(kColumnPacks, kRowLanes);
  const int64_t groups = CeilDivide(columns, kColumnPacks * N);
  int64_t ranges = Smaller(Smaller(CeilDivide(rows, kMinRangeRows), kMaxRanges), kBlocksWanted / (groups + 1));
  ranges = Smaller(ranges, kColumnSumBytes / 4 / (columns + 1));
  if (ranges <= 1) {
    const dim3 blocks(static_cast<unsigned>(CeilDivide(out_count, kColumnPacks * N)));
    return Launch(place.stream, blocks, threads, 0, SumRowsKernel<N, Load, Out>, rows, columns, rows, load, out_count,
                  out, add);
  }
  const dim3 blocks(static_cast<unsigned>(groups), static_cast<unsigned>(ranges));
  if (const cudaError_t error = Launch(place.stream, blocks, threads, 0, SumRowsKernel<N, Load, float>, rows, columns,
                                       CeilDivide(rows, ranges), load, columns, workspace, false);
      error != cudaSuccess) {
    return error;
  }
  return Launch(place.stream, dim3(static_cast<unsigned>(CeilDivide(out_count, kColumnPacks))), threads, 0,
                SumRangesKernel<Out>, static_cast<int>(ranges), columns, workspace, out_count, out, add);
}

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_CUDA_COLUMN_SUM_CUH_
