// The small commands of a microbatch and of a step, on the control block and the step state.
#ifndef REPRISE_KERNELS_STEP_H_
#define REPRISE_KERNELS_STEP_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "reprise/core/control_block.h"
#include "reprise/core/dtype.h"
#include "reprise/core/stream.h"
#include "reprise/kernels/command_arguments.h"

namespace reprise::kernels {

// control->microbatch takes the value kept for the next replay, which then grows by `count`, the microbatches of a
// replay, at least 1.
absl::Status NextMicrobatch(Stream stream, ControlBlock* control, int count);

// Copies num_bytes bytes from slot (control->earlier_microbatches + control->microbatch + position) mod slots of
// `staging`, slot_stride bytes apart.
absl::Status StageInput(Stream stream, const StageInputArguments& arguments);

// step_state->loss_sum += *loss.
absl::Status RecordLoss(Stream stream, StepState* step_state, const float* loss);

// Sums parts[0] to parts[world_size - 1], of the ranks in order, into norm_squared and loss_total, in double. skip =
// kRanksDiffer where `agreed` of a part is not control's, otherwise kGradientNotFinite where the norm, summed or
// divided by D = gradient_divisor loss_scale, is beyond float; without skip, ++optimizer_steps.
absl::Status FinishNorm(Stream stream, const ControlBlock* control, StepState* step_state, const NormPart* parts,
                        int world_size);

// Writes the step's entry of the ring (loss = loss_total / (world_size microbatches), gradient_norm =
// sqrt(norm_squared) / D), then ++ring->published (with release order), then loss_sum = 0.
absl::Status PublishMetrics(Stream stream, const ControlBlock* control, StepState* step_state, MetricsRing* ring,
                            int world_size);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_STEP_H_
