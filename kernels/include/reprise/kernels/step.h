// The small commands of a microbatch and of a step, on the control block and the step state.
#ifndef REPRISE_KERNELS_STEP_H_
#define REPRISE_KERNELS_STEP_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "reprise/core/control_block.h"
#include "reprise/core/dtype.h"
#include "reprise/core/stream.h"

namespace reprise::kernels {

// control->microbatch, input and random_offset take the values kept for the next replay, which then grow by `count`.
absl::Status NextMicrobatch(Stream stream, ControlBlock* control, int count);

// Copies num_bytes from slot (control->input + position) mod slots of `staging`, slot_stride bytes apart.
struct StageInputArguments {
  const ControlBlock* control = nullptr;  // read at replay
  int position = 0;
  int slots = 2;
  const std::byte* staging = nullptr;
  int64_t slot_stride = 0;
  int64_t num_bytes = 0;
  std::byte* destination = nullptr;
};
absl::Status StageInput(Stream stream, const StageInputArguments& arguments);

// step_state->loss_sum += *loss.
absl::Status RecordLoss(Stream stream, StepState* step_state, const float* loss);

// Sums the parts of all ranks, in rank order, into norm_squared and loss_total. skip = kRanksDiffer where `agreed` of
// a part is not control's, otherwise kGradientNotFinite where the norm is not; without skip, ++optimizer_steps.
absl::Status FinishNorm(Stream stream, const ControlBlock* control, StepState* step_state, const NormPart* parts,
                        int world_size);

// Writes the step's entry of the ring, then ++ring->published (with release order), then loss_sum = 0.
absl::Status PublishMetrics(Stream stream, const ControlBlock* control, StepState* step_state, MetricsRing* ring,
                            int world_size);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_STEP_H_
