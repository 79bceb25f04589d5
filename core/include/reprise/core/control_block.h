// The values that change between replays of one recording: kernels read them from memory, so that none is baked in.
#ifndef REPRISE_CORE_CONTROL_BLOCK_H_
#define REPRISE_CORE_CONTROL_BLOCK_H_

#include <cstdint>

namespace reprise {

// One per rank, in the memory its kernels can read. The per-step part is uploaded by TrainSession::BeginStep; the
// counters are set by that upload and advanced by the NextMicrobatch command at the head of each replay.
struct ControlBlock {
  // Per step.
  float learning_rate = 0;
  float loss_scale = 1;        // gradient of the loss; a power of two
  float gradient_divisor = 1;  // the step divides the summed gradient by this and by loss_scale
  int32_t microbatches = 1;    // in this step
  uint64_t seed = 0;           // of the session, for random numbers
  int64_t step = 0;  // from 0; counts steps that end, skipped ones too: a discarded one leaves its number to the next
  uint64_t agreed = 0;  // hash of all that must be the same on all ranks in this step; see SumNorm

  // Counters. A command of the replay's j-th microbatch adds j, its position, to these.
  int64_t microbatch = 0;       // within the step, of this replay's first microbatch
  int64_t next_microbatch = 0;  // the same for the next replay
  // Of the run, of all steps before this one. With `microbatch` it numbers the microbatches of the run, each number
  // used once: it chooses the staging slot, and random numbers that are drawn for it repeat in no other.
  int64_t earlier_microbatches = 0;
};

// Why a step made no update.
enum class SkipReason : uint8_t {
  kNone = 0,
  // The gradient, or its norm, summed or divided, is no number that a float holds; TrainSession::FindNonFinite tells
  // where that began.
  kGradientNotFinite = 1,
  kRanksDiffer = 2,  // ControlBlock::agreed, or some rank gave nothing to SumNorm
};

// What each rank gives to SumNorm.
struct NormPart {
  double norm_squared = 0;  // of this rank's part of the summed gradient
  double loss_sum = 0;
  uint64_t agreed = 0;  // ControlBlock::agreed
};

// What the commands of a step add up on the device, one per rank. The step commands read and reset the sums.
struct StepState {
  double loss_sum = 0;                  // over this step's microbatches, of this rank's losses
  double norm_squared = 0;              // over all ranks, of the summed gradient, before any division
  double loss_total = 0;                // loss_sum over all ranks
  int64_t optimizer_steps = 0;          // updates made; a skipped step does not count
  SkipReason skip = SkipReason::kNone;  // otherwise the update must not run
  uint8_t padding[7] = {};
};

// What one step reports, see TrainSession::PollMetrics.
struct StepMetrics {
  int64_t step = 0;         // from 0
  float loss = 0;           // mean over ranks and microbatches
  float gradient_norm = 0;  // of the divided gradient, over all parameters, before clipping
  float loss_scale = 1;
  bool skipped = false;  // for skip_reason; parameters and optimizer state are unchanged
  SkipReason skip_reason = SkipReason::kNone;
};

// Hand-over of StepMetrics to the host: entry (step mod kMetricsRingSize) is written by PublishMetrics.
inline constexpr int64_t kMetricsRingSize = 64;
struct MetricsRing {
  StepMetrics entries[kMetricsRingSize];
  int64_t published = 0;  // steps written so far
};

}  // namespace reprise

#endif  // REPRISE_CORE_CONTROL_BLOCK_H_
