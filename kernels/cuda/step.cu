// The small commands of a microbatch and of a step.
#include <cfloat>

#include "kernels/cuda/elements.cuh"

namespace reprise::kernels {
namespace {

__global__ void NextMicrobatchKernel(ControlBlock* control, int count) {
  control->microbatch = control->next_microbatch;
  control->next_microbatch += count;
  control->input = control->next_input;
  control->next_input += count;
  control->random_offset = control->next_random_offset;
  control->next_random_offset += static_cast<uint64_t>(count);
}

constexpr int kStageThreads = 256;

// Copies packs of N bytes, then the bytes past the last pack.
template <int N>
__global__ void __launch_bounds__(kStageThreads) StageInputKernel(StageLaunch a) {
  const int64_t slot = (a.control->input + a.position) % a.slots;
  const std::byte* from = a.staging + slot * a.slot_stride;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kStageThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kStageThreads;
  const int64_t packs = a.num_bytes / N;
#pragma unroll 4
  for (int64_t i = thread; i < packs; i += threads) StorePack(a.destination + i * N, LoadPack<N>(from + i * N));
  for (int64_t i = packs * N + thread; i < a.num_bytes; i += threads) a.destination[i] = from[i];
}

__global__ void RecordLossKernel(StepState* step_state, const float* loss) { step_state->loss_sum += *loss; }

__global__ void FinishNormKernel(const ControlBlock* control, StepState* step_state, const NormPart* parts,
                                 int world_size) {
  double norm_squared = 0, loss_total = 0;
  bool differs = false;
  for (int rank = 0; rank < world_size; ++rank) {
    norm_squared += parts[rank].norm_squared;
    loss_total += parts[rank].loss_sum;
    differs = differs || parts[rank].agreed != control->agreed;
  }
  step_state->norm_squared = norm_squared;
  step_state->loss_total = loss_total;
  // Of the gradient, summed and divided: does a float hold its norm?
  const double largest = static_cast<double>(FLT_MAX) *
                         (static_cast<double>(control->gradient_divisor) * control->loss_scale);
  const bool finite = isfinite(norm_squared) && norm_squared <= largest * largest;
  step_state->skip = differs  ? SkipReason::kRanksDiffer
                     : finite ? SkipReason::kNone
                              : SkipReason::kGradientNotFinite;
  if (step_state->skip == SkipReason::kNone) ++step_state->optimizer_steps;
}

// The ring may lie in host memory, which the host polls while steps run: the entry is there before `published` says so.
// Nobody else writes `published`, so that it needs no atomic addition, which a bus may not have.
__global__ void PublishMetricsKernel(const ControlBlock* control, StepState* step_state, MetricsRing* ring,
                                     int world_size) {
  const double divisor = static_cast<double>(control->gradient_divisor) * control->loss_scale;
  const double losses = static_cast<double>(world_size) * control->microbatches;
  StepMetrics& entry = ring->entries[control->step % kMetricsRingSize];
  entry.step = control->step;
  entry.loss = static_cast<float>(step_state->loss_total / losses);
  entry.gradient_norm = static_cast<float>(sqrt(step_state->norm_squared) / divisor);
  entry.loss_scale = control->loss_scale;
  entry.skipped = step_state->skip != SkipReason::kNone;
  entry.skip_reason = step_state->skip;
  const int64_t published = *static_cast<volatile int64_t*>(&ring->published) + 1;
  __threadfence_system();
  asm volatile("st.release.sys.global.s64 [%0], %1;" ::"l"(__cvta_generic_to_global(&ring->published)), "l"(published)
               : "memory");
  step_state->loss_sum = 0;
}

}  // namespace

cudaError_t LaunchNextMicrobatch(cudaStream_t stream, ControlBlock* control, int count) {
  return Launch(stream, 1, 1, 0, NextMicrobatchKernel, control, count);
}

cudaError_t LaunchStageInput(cudaStream_t stream, const StageLaunch& a) {
  constexpr int N = 16;
  const bool aligned = IsAligned<N>(a.staging) && IsAligned<N>(a.destination) && a.slot_stride % N == 0;
  const dim3 blocks = Blocks(CeilDivide(a.num_bytes, int64_t{4} * kStageThreads * (aligned ? N : 1)));
  return aligned ? Launch(stream, blocks, kStageThreads, 0, StageInputKernel<N>, a)
                 : Launch(stream, blocks, kStageThreads, 0, StageInputKernel<1>, a);
}

cudaError_t LaunchRecordLoss(cudaStream_t stream, StepState* step_state, const float* loss) {
  return Launch(stream, 1, 1, 0, RecordLossKernel, step_state, loss);
}

cudaError_t LaunchFinishNorm(cudaStream_t stream, const ControlBlock* control, StepState* step_state,
                             const NormPart* parts, int world_size) {
  return Launch(stream, 1, 1, 0, FinishNormKernel, control, step_state, parts, world_size);
}

cudaError_t LaunchPublishMetrics(cudaStream_t stream, const ControlBlock* control, StepState* step_state,
                                 MetricsRing* ring, int world_size) {
  return Launch(stream, 1, 1, 0, PublishMetricsKernel, control, step_state, ring, world_size);
}

}  // namespace reprise::kernels
