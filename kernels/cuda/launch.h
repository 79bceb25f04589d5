// The launches of all device kernels but GEMM. Each enqueues on the stream and returns what the runtime said; none
// allocates or synchronises. Without Abseil, which would cost nvcc seconds in every file.
//
// Sums are split by shape alone, so that results do not depend on the device, on addresses or on chance.
#ifndef REPRISE_KERNELS_CUDA_LAUNCH_H_
#define REPRISE_KERNELS_CUDA_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/device_arguments.h"

namespace reprise::kernels {

// Where a kernel is enqueued, and the stream's working memory, which its kernels use in turn.
struct LaunchPlace {
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;

  template <class T>
  T* Workspace(int64_t offset_bytes = 0) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(workspace) + offset_bytes);
  }
};

// LaunchCopy, LaunchAdd and so on.
#define REPRISE_DECLARE(Name, Arguments) cudaError_t Launch##Name(const LaunchPlace& place, const Arguments& arguments);
REPRISE_FOR_DEVICE_KERNELS(REPRISE_DECLARE)
#undef REPRISE_DECLARE

// ---- working memory ----

// Of a column sum, at most; of any size of matrix.
inline constexpr int64_t kColumnSumBytes = int64_t{4} << 20;
// Of RmsNormBackward, with a gradient of the gain.
constexpr int64_t RmsNormBackwardBytes(int64_t rows) { return kColumnSumBytes + 4 * rows; }
constexpr int64_t EmbeddingBackwardBytes(int64_t count) { return 8 * count; }
// Of the loss, of any number of rows.
inline constexpr int64_t kCrossEntropyBytes = int64_t{4} << 20;
// Of CausalAttentionBackward for one head of one sequence. It takes as many heads at a time as fit.
constexpr int64_t AttentionBackwardBytes(int64_t time) { return 4 * time; }

// ---- shared memory of attention ----

// Attention works on tiles of so many queries and keys, and on so many columns of a head at a time.
inline constexpr int kTile = 64;
constexpr int AttentionChunk(int64_t head_width) { return head_width <= 32 ? 32 : head_width <= 64 ? 64 : 128; }
// Shared memory of a block: tiles of a chunk's columns, and of queries by keys, in float with 16 bytes more in each
// row.
constexpr int64_t AttentionTileBytes(int columns) { return int64_t{kTile} * (columns + 4) * 4; }
constexpr int64_t AttentionSharedBytes(int64_t head_width) {
  return 3 * AttentionTileBytes(AttentionChunk(head_width)) + AttentionTileBytes(kTile);
}
constexpr int64_t AttentionBackwardSharedBytes(int64_t head_width) {
  return 4 * AttentionTileBytes(AttentionChunk(head_width)) + 2 * AttentionTileBytes(kTile);
}

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_CUDA_LAUNCH_H_
