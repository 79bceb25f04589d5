// What attention's kernels share. A block works on one tile of queries and goes through tiles of keys, or the reverse;
// products are made from tiles in shared memory, in float. Heads wider than a chunk are taken chunk by chunk, each
// block making one chunk of the output.
#ifndef REPRISE_KERNELS_CUDA_ATTENTION_CUH_
#define REPRISE_KERNELS_CUDA_ATTENTION_CUH_

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.h"

namespace reprise::kernels {

// The threads of a block form a square; each makes 4 x 4 elements of a product of tiles: rows 4 y to 4 y + 3, columns
// x, x + 16, x + 32 and x + 48.
inline constexpr int kSide = 16, kMicro = kTile / kSide;
inline constexpr int kAttentionThreads = kSide * kSide;

// Rows of 16 bytes more than their elements: 16-byte reads down a column meet no bank twice.
template <int kColumns>
struct Tile {
  float rows[kTile][kColumns + 4];
};
static_assert(sizeof(Tile<kTile>) == AttentionTileBytes(kTile));

// This thread's elements of a product of tiles.
using Micro = float[kMicro][kMicro];

__device__ inline int ThreadX() { return threadIdx.x % kSide; }
__device__ inline int ThreadY() { return threadIdx.x / kSide; }
__device__ inline int MicroRow(int i) { return ThreadY() * kMicro + i; }
__device__ inline int MicroColumn(int j) { return ThreadX() + kSide * j; }

// One head of one sequence: rows of qkv and of y, or of their gradients.
struct HeadPlace {
  int64_t head;        // among all heads of all sequences
  int64_t qkv_offset;  // elements; key and value come width and 2 width later
  int64_t y_offset;
};
__device__ inline HeadPlace PlaceOf(const AttentionShape& e, int64_t head) {
  const int64_t row = head / e.heads * e.time, column = head % e.heads * (e.width / e.heads);
  return {head, row * 3 * e.width + column, row * e.width + column};
}

// Rows [first_row, first_row + kTile) and columns [first_column, first_column + kColumns) of one head, 0 past its ends.
template <int kColumns, class T>
__device__ void LoadTile(const T* head, int64_t stride, int64_t first_row, int64_t rows, int64_t first_column,
                         int64_t columns, Tile<kColumns>& tile) {
  constexpr int kRowsAtOnce = kAttentionThreads / kColumns;
  const int column = threadIdx.x % kColumns, first = threadIdx.x / kColumns;
  const bool inside = first_column + column < columns;
  const T* from = head + (first_row + first) * stride + first_column + column;
#pragma unroll 4
  for (int row = first; row < kTile; row += kRowsAtOnce) {
    tile.rows[row][column] = inside && first_row + row < rows ? ToFloat(*from) : 0.0f;
    from += kRowsAtOnce * stride;
  }
}

// out += a b^T.
template <int kColumns>
__device__ void AddRowProducts(const Tile<kColumns>& a, const Tile<kColumns>& b, Micro& out) {
#pragma unroll 4
  for (int c = 0; c < kColumns; c += 4) {
    float4 x[kMicro], y[kMicro];
#pragma unroll
    for (int i = 0; i < kMicro; ++i) {
      x[i] = *reinterpret_cast<const float4*>(&a.rows[MicroRow(i)][c]);
      y[i] = *reinterpret_cast<const float4*>(&b.rows[MicroColumn(i)][c]);
    }
#pragma unroll
    for (int i = 0; i < kMicro; ++i) {
#pragma unroll
      for (int j = 0; j < kMicro; ++j) {
        out[i][j] += x[i].x * y[j].x;
        out[i][j] += x[i].y * y[j].y;
        out[i][j] += x[i].z * y[j].z;
        out[i][j] += x[i].w * y[j].w;
      }
    }
  }
}

// This thread's elements of a tile of kColumns columns: rows MicroRow, columns MicroColumn.
template <int kColumns>
using OutMicro = float[kMicro][kColumns / kSide];

// out += a b.
template <int kColumns>
__device__ void AddProducts(const Tile<kTile>& a, const Tile<kColumns>& b, OutMicro<kColumns>& out) {
#pragma unroll 2
  for (int k = 0; k < kTile; k += 4) {
    float4 x[kMicro];
#pragma unroll
    for (int i = 0; i < kMicro; ++i) x[i] = *reinterpret_cast<const float4*>(&a.rows[MicroRow(i)][k]);
#pragma unroll
    for (int j = 0; j < kColumns / kSide; ++j) {
      const float y[4] = {b.rows[k][MicroColumn(j)], b.rows[k + 1][MicroColumn(j)], b.rows[k + 2][MicroColumn(j)],
                          b.rows[k + 3][MicroColumn(j)]};
#pragma unroll
      for (int i = 0; i < kMicro; ++i) {
        out[i][j] += x[i].x * y[0];
        out[i][j] += x[i].y * y[1];
        out[i][j] += x[i].z * y[2];
        out[i][j] += x[i].w * y[3];
      }
    }
  }
}

// out += a^T b.
template <int kColumns>
__device__ void AddTransposedProducts(const Tile<kTile>& a, const Tile<kColumns>& b, OutMicro<kColumns>& out) {
#pragma unroll 4
  for (int k = 0; k < kTile; ++k) {
    const float4 x = *reinterpret_cast<const float4*>(&a.rows[k][MicroRow(0)]);
#pragma unroll
    for (int j = 0; j < kColumns / kSide; ++j) {
      const float y = b.rows[k][MicroColumn(j)];
      out[0][j] += x.x * y;
      out[1][j] += x.y * y;
      out[2][j] += x.z * y;
      out[3][j] += x.w * y;
    }
  }
}

__device__ inline void StoreMicro(const Micro& values, Tile<kTile>& tile) {
#pragma unroll
  for (int i = 0; i < kMicro; ++i) {
#pragma unroll
    for (int j = 0; j < kMicro; ++j) tile.rows[MicroRow(i)][MicroColumn(j)] = values[i][j];
  }
}

// Combines over the threads that share a row; the same in all of them.
template <class Combine>
__device__ float RowReduce(float value, const Combine& combine) {
#pragma unroll
  for (int offset = kSide / 2; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// Rows from first_row on and columns from first_column on of one head.
template <int kColumns, class T>
__device__ void StoreOut(const OutMicro<kColumns>& values, int64_t stride, int64_t first_row, int64_t rows,
                         int64_t first_column, int64_t columns, bool add, T* head) {
#pragma unroll
  for (int i = 0; i < kMicro; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns / kSide; ++j) {
      const int64_t row = first_row + MicroRow(i), column = first_column + MicroColumn(j);
      if (row >= rows || column >= columns) continue;
      T* to = head + row * stride + column;
      *to = FromFloat<T>(add ? ToFloat(*to) + values[i][j] : values[i][j]);
    }
  }
}

// Blocks for each tile of each head and each chunk of the output; those of the last tiles of time come first.
struct BlockPlace {
  int64_t tile, head, chunk;
};
__device__ inline BlockPlace PlaceOfBlock(int64_t tiles, int64_t heads) {
  return {tiles - 1 - blockIdx.x / heads, blockIdx.x % heads, blockIdx.y};
}

// ---- host side ----

// Calls body(Constant) with the number of columns of a chunk.
template <int kValue>
struct Columns {
  static constexpr int value = kValue;
};
template <class Body>
cudaError_t WithChunk(int64_t head_width, const Body& body) {
  switch (AttentionChunk(head_width)) {
    case 32:
      return body(Columns<32>());
    case 64:
      return body(Columns<64>());
    default:
      return body(Columns<128>());
  }
}

// A launch that may need more shared memory than a block gets unasked.
template <class... Parameters, class... Arguments>
cudaError_t LaunchTiles(cudaStream_t stream, const AttentionShape& e, int64_t heads, int chunk, int64_t shared_bytes,
                        void (*kernel)(Parameters...), const Arguments&... arguments) {
  const int64_t blocks = CeilDivide(e.time, kTile) * heads;
  if (blocks == 0 || e.width == 0) return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (error != cudaSuccess) return error;
  return Launch(stream,
                dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(CeilDivide(e.width / e.heads, chunk))),
                kAttentionThreads, shared_bytes, kernel, arguments...);
}

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_CUDA_ATTENTION_CUH_
