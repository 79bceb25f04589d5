// The small commands of a microbatch and of a step.
#include <cfloat>

#include "kernels/cuda/elements.cuh"

namespace reprise::kernels {
namespace {

__global__ void NextMicrobatchKernel(NextMicrobatchArguments a) {
  ControlBlock* const control = a.control;
  control->microbatch = control->next_microbatch;
  control->next_microbatch += a.count;
}

constexpr int kStageThreads = 256;

// Copies packs of N bytes, then the bytes past the last pack.
template <int N>
__global__ void __launch_bounds__(kStageThreads) StageInputKernel(StageInputArguments a) {
  const int64_t slot = (a.control->earlier_microbatches + a.control->microbatch + a.position) % a.slots;
  const std::byte* from = a.staging + slot * a.slot_stride;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kStageThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kStageThreads;
  const int64_t packs = a.num_bytes / N;
#pragma unroll 4
  for (int64_t i = thread; i < packs; i += threads) StorePack(a.destination + i * N, LoadPack<N>(from + i * N));
  for (int64_t i = packs * N + thread; i < a.num_bytes; i += threads) a.destination[i] = from[i];
}

__global__ void RecordLossKernel(RecordLossArguments a) { a.step_state->loss_sum += *a.loss; }

__global__ void FinishNormKernel(FinishNormArguments a) {
  double norm_squared = 0, loss_total = 0;
  bool differs = false;
  for (int rank = 0; rank < a.world_size; ++rank) {
    norm_squared += a.parts[rank].norm_squared;
    loss_total += a.parts[rank].loss_sum;
    differs = differs || a.parts[rank].agreed != a.control->agreed;
  }
  a.step_state->norm_squared = norm_squared;
  a.step_state->loss_total = loss_total;
  // Of the gradient, summed and divided: does a float hold its norm?
  const double largest =
      static_cast<double>(FLT_MAX) * (static_cast<double>(a.control->gradient_divisor) * a.control->loss_scale);
  const bool finite = isfinite(norm_squared) && norm_squared <= largest * largest;
  a.step_state->skip = differs ? SkipReason::kRanksDiffer : finite ? SkipReason::kNone : SkipReason::kGradientNotFinite;
  if (a.step_state->skip == SkipReason::kNone) ++a.step_state->optimizer_steps;
}

// The ring may lie in host memory, which the host polls while steps run: the entry is there before `published` says so.
// Nobody else writes `published`, so that it needs no atomic addition, which a bus may not have.
__global__ void PublishMetricsKernel(PublishMetricsArguments a) {
  const double divisor = static_cast<double>(a.control->gradient_divisor) * a.control->loss_scale;
  const double losses = static_cast<double>(a.world_size) * a.control->microbatches;
  StepMetrics& entry = a.ring->entries[a.control->step % kMetricsRingSize];
  entry.step = a.control->step;
  entry.loss = static_cast<float>(a.step_state->loss_total / losses);
  entry.gradient_norm = static_cast<float>(sqrt(a.step_state->norm_squared) / divisor);
  entry.loss_scale = a.control->loss_scale;
  entry.skipped = a.step_state->skip != SkipReason::kNone;
  entry.skip_reason = a.step_state->skip;
  const int64_t published = *static_cast<volatile int64_t*>(&a.ring->published) + 1;
  __threadfence_system();
  asm volatile("st.release.sys.global.s64 [%0], %1;" ::"l"(__cvta_generic_to_global(&a.ring->published)), "l"(published)
               : "memory");
  a.step_state->loss_sum = 0;
}

}  // namespace

cudaError_t LaunchNextMicrobatch(const LaunchPlace& place, const NextMicrobatchArguments& a) {
  return Launch(place.stream, 1, 1, 0, NextMicrobatchKernel, a);
}

cudaError_t LaunchStageInput(const LaunchPlace& place, const StageInputArguments& a) {
  constexpr int N = 16;
  const bool aligned = IsAligned<N>(a.staging) && IsAligned<N>(a.destination) && a.slot_stride % N == 0;
  const dim3 blocks = Blocks(CeilDivide(a.num_bytes, int64_t{4} * kStageThreads * (aligned ? N : 1)));
  return aligned ? Launch(place.stream, blocks, kStageThreads, 0, StageInputKernel<N>, a)
                 : Launch(place.stream, blocks, kStageThreads, 0, StageInputKernel<1>, a);
}

cudaError_t LaunchRecordLoss(const LaunchPlace& place, const RecordLossArguments& a) {
  return Launch(place.stream, 1, 1, 0, RecordLossKernel, a);
}

cudaError_t LaunchFinishNorm(const LaunchPlace& place, const FinishNormArguments& a) {
  return Launch(place.stream, 1, 1, 0, FinishNormKernel, a);
}

cudaError_t LaunchPublishMetrics(const LaunchPlace& place, const PublishMetricsArguments& a) {
  return Launch(place.stream, 1, 1, 0, PublishMetricsKernel, a);
}

}  // namespace reprise::kernels
