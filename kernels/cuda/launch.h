// The launches of all device kernels but the matrix product. Each enqueues on the stream and returns what the runtime
// said; none allocates or synchronises. Without Abseil, which would cost nvcc seconds in every file.
//
// Sums are split by shape alone, so that results do not depend on the device, on addresses or on chance.
#ifndef REPRISE_KERNELS_CUDA_LAUNCH_H_
#define REPRISE_KERNELS_CUDA_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "reprise/core/control_block.h"

namespace reprise::kernels {

enum class Element : uint8_t { kFloat, kBFloat16 };

struct Source {
  const void* data;
  Element element;
};
struct Target {
  void* data;
  Element element;
  bool add;  // to the old values; else they are not read
};

// ---- elementwise ----

cudaError_t LaunchCopy(cudaStream_t stream, int64_t count, Source from, Target to);
// `rows` rows of `columns` elements, `row_stride` elements apart in `from`, dense in `to`.
cudaError_t LaunchCopyRows(cudaStream_t stream, int64_t rows, int64_t columns, int64_t row_stride, Source from,
                           Target to);
// All of one element type, as in the rest of this file where nothing else is said. b repeats every b_count elements.
cudaError_t LaunchAdd(cudaStream_t stream, int64_t count, Source a, Source b, int64_t b_count, Target y);
cudaError_t LaunchGelu(cudaStream_t stream, int64_t count, Source x, Target y);
cudaError_t LaunchGeluBackward(cudaStream_t stream, int64_t count, Source dy, Source x, Target dx);
cudaError_t LaunchRelu(cudaStream_t stream, int64_t count, Source x, Target y);
cudaError_t LaunchReluBackward(cudaStream_t stream, int64_t count, Source dy, Source x, Target dx);

// ---- sums over rows ----

// Working memory of a column sum, at most; of any size of matrix.
inline constexpr int64_t kColumnSumBytes = int64_t{4} << 20;

// `sums`: float, or the element type of x. Those past `columns` are 0.
cudaError_t LaunchColumnSum(cudaStream_t stream, int64_t rows, int64_t columns, Source x, int64_t sums_count,
                            Target sums, float* workspace);
cudaError_t LaunchRmsNorm(cudaStream_t stream, int64_t rows, int64_t columns, float epsilon, Source x, Source gain,
                          Target y);
// factors [rows] gets 1 / sqrt(mean(x^2) + epsilon) if it is not null. dx may be empty.
cudaError_t LaunchRmsNormBackward(cudaStream_t stream, int64_t rows, int64_t columns, float epsilon, Source dy,
                                  Source x, Source gain, Target dx, float* factors);
// dgain: float, or the element type of x. The sum over rows of dy x factor.
cudaError_t LaunchRmsNormGain(cudaStream_t stream, int64_t rows, int64_t columns, Source dy, Source x,
                              const float* factors, Target dgain, float* workspace);

// ---- language models ----

cudaError_t LaunchEmbedding(cudaStream_t stream, int64_t count, int64_t entries, int64_t width, const int32_t* ids,
                            Source table, Target y);
// Working memory of the backward kernel.
constexpr int64_t EmbeddingBackwardBytes(int64_t count) { return 8 * count; }
// dtable: float, or the element type of dy.
cudaError_t LaunchEmbeddingBackward(cudaStream_t stream, int64_t count, int64_t entries, int64_t width, Source dy,
                                    const int32_t* ids, Target dtable, void* workspace);

struct AttentionExtents {
  int64_t sequences, time, width, heads;
};
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
cudaError_t LaunchAttention(cudaStream_t stream, AttentionExtents extents, Source qkv, Target y, float* log_sum_exp);
// Working memory of the backward kernel for one head of one sequence. It takes as many heads at a time as fit.
constexpr int64_t AttentionBackwardBytes(int64_t time) { return 4 * time; }
cudaError_t LaunchAttentionBackward(cudaStream_t stream, AttentionExtents extents, Source dy, Source qkv,
                                    const float* log_sum_exp, Target dqkv, float* workspace, int64_t workspace_bytes);

// Working memory of the loss, of any number of rows.
inline constexpr int64_t kCrossEntropyBytes = int64_t{4} << 20;
cudaError_t LaunchCrossEntropy(cudaStream_t stream, int64_t rows, int64_t classes, Source logits, const int32_t* labels,
                               float* loss, void* workspace);
cudaError_t LaunchCrossEntropyBackward(cudaStream_t stream, int64_t rows, int64_t classes, const float* dloss,
                                       Source logits, const int32_t* labels, Target dlogits);

// ---- commands of a schedule ----

// Segments that one launch takes.
inline constexpr int kMaxSegments = 64;
struct AccumulateLaunch {
  const ControlBlock* control;  // null: assign always
  int position;
  Source parts;
  int num_parts;
  const void* own;  // null: all are in parts
  int own_place;
  int64_t elements;
  float* accumulator;
  double* norm_partials;
  bool beside_compute;
  // Elements [begin, end), with all their segments. Launches follow one another: a range that began before `begin` has
  // a partial norm already, which is added to.
  int64_t begin = 0, end = 0;
  int num_segments = 0;
  int64_t first[kMaxSegments] = {};
  int64_t count[kMaxSegments] = {};
};
cudaError_t LaunchAccumulate(cudaStream_t stream, const AccumulateLaunch& arguments);

struct UpdateLaunch {
  const ControlBlock* control;
  const StepState* step_state;
  float clip_norm;
  const float* gradient_sum;
  void* master;
  Element master_element;
  int64_t count;
  float weight_decay;
};
struct AdamWLaunch {
  UpdateLaunch update;
  float beta1, beta2, epsilon;
  float* first_moment;
  float* second_moment;
};
cudaError_t LaunchAdamW(cudaStream_t stream, const AdamWLaunch& arguments);
struct SgdLaunch {
  UpdateLaunch update;
  float momentum;
  float* velocity;
};
cudaError_t LaunchSgd(cudaStream_t stream, const SgdLaunch& arguments);

cudaError_t LaunchNextMicrobatch(cudaStream_t stream, ControlBlock* control, int count);
struct StageLaunch {
  const ControlBlock* control;
  int position;
  int slots;
  const std::byte* staging;
  int64_t slot_stride;
  int64_t num_bytes;
  std::byte* destination;
};
cudaError_t LaunchStageInput(cudaStream_t stream, const StageLaunch& arguments);
cudaError_t LaunchRecordLoss(cudaStream_t stream, StepState* step_state, const float* loss);
cudaError_t LaunchFinishNorm(cudaStream_t stream, const ControlBlock* control, StepState* step_state,
                             const NormPart* parts, int world_size);
cudaError_t LaunchPublishMetrics(cudaStream_t stream, const ControlBlock* control, StepState* step_state,
                                 MetricsRing* ring, int world_size);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_CUDA_LAUNCH_H_
