#include "reprise/kernels/step.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/checks.h"
#include "kernels/device_kernels.h"
#include "reprise/core/status_macros.h"

namespace reprise::kernels {
namespace {

// After loss_total and norm_squared are final.
StepMetrics MetricsOf(const ControlBlock& control, const StepState& state, int world_size) {
  const double divisor = static_cast<double>(control.gradient_divisor) * control.loss_scale;
  const double losses = static_cast<double>(world_size) * control.microbatches;
  return {.step = control.step,
          .loss = static_cast<float>(state.loss_total / losses),
          .gradient_norm = static_cast<float>(std::sqrt(state.norm_squared) / divisor),
          .loss_scale = control.loss_scale,
          .skipped = state.skip != SkipReason::kNone,
          .skip_reason = state.skip};
}

// Of a gradient, summed and divided: does a float hold its norm?
bool IsFiniteDivided(const ControlBlock& control, double norm_squared) {
  const double divisor = static_cast<double>(control.gradient_divisor) * control.loss_scale;
  const double largest = static_cast<double>(std::numeric_limits<float>::max()) * divisor;
  return std::isfinite(norm_squared) && norm_squared <= largest * largest;
}

}  // namespace

absl::Status NextMicrobatch(Stream stream, ControlBlock* control, int count) {
  REPRISE_RETURN_IF_ERROR(Checks("NextMicrobatch").Address("control", control).AtLeast("count", count, 1).Done());
  return Enqueue(stream, &DeviceKernels::NextMicrobatch, {control, count}, [](const NextMicrobatchArguments& a) {
    a.control->microbatch = a.control->next_microbatch;
    a.control->next_microbatch += a.count;
  });
}

absl::Status StageInput(Stream stream, const StageInputArguments& arguments) {
  REPRISE_RETURN_IF_ERROR(
      Checks("StageInput")
          .Address("control", arguments.control)
          .AtLeast("position", arguments.position, 0)
          .AtLeast("slots", arguments.slots, 1)
          .AtLeast("num_bytes", arguments.num_bytes, 0)
          .AtLeast("slot_stride", arguments.slot_stride, arguments.slots > 1 ? arguments.num_bytes : 0)
          .Address("staging", arguments.staging, arguments.num_bytes)
          .Address("destination", arguments.destination, arguments.num_bytes)
          .Done());
  if (arguments.num_bytes == 0) return absl::OkStatus();
  return Enqueue(stream, &DeviceKernels::StageInput, arguments, [](const StageInputArguments& a) {
    const int64_t slot = (a.control->earlier_microbatches + a.control->microbatch + a.position) % a.slots;
    std::memcpy(a.destination, a.staging + slot * a.slot_stride, static_cast<size_t>(a.num_bytes));
  });
}

absl::Status RecordLoss(Stream stream, StepState* step_state, const float* loss) {
  REPRISE_RETURN_IF_ERROR(Checks("RecordLoss").Address("step_state", step_state).Address("loss", loss).Done());
  return Enqueue(stream, &DeviceKernels::RecordLoss, {step_state, loss},
                 [](const RecordLossArguments& a) { a.step_state->loss_sum += *a.loss; });
}

absl::Status FinishNorm(Stream stream, const ControlBlock* control, StepState* step_state, const NormPart* parts,
                        int world_size) {
  REPRISE_RETURN_IF_ERROR(Checks("FinishNorm")
                              .Address("control", control)
                              .Address("step_state", step_state)
                              .Address("parts", parts)
                              .AtLeast("world_size", world_size, 1)
                              .Done());
  return Enqueue(stream, &DeviceKernels::FinishNorm, {control, step_state, parts, world_size},
                 [](const FinishNormArguments& a) {
                   double norm_squared = 0, loss_total = 0;
                   bool differs = false;
                   for (int rank = 0; rank < a.world_size; ++rank) {
                     norm_squared += a.parts[rank].norm_squared;
                     loss_total += a.parts[rank].loss_sum;
                     differs = differs || a.parts[rank].agreed != a.control->agreed;
                   }
                   a.step_state->norm_squared = norm_squared;
                   a.step_state->loss_total = loss_total;
                   a.step_state->skip = differs                                     ? SkipReason::kRanksDiffer
                                        : IsFiniteDivided(*a.control, norm_squared) ? SkipReason::kNone
                                                                                    : SkipReason::kGradientNotFinite;
                   if (a.step_state->skip == SkipReason::kNone) ++a.step_state->optimizer_steps;
                 });
}

absl::Status PublishMetrics(Stream stream, const ControlBlock* control, StepState* step_state, MetricsRing* ring,
                            int world_size) {
  REPRISE_RETURN_IF_ERROR(Checks("PublishMetrics")
                              .Address("control", control)
                              .Address("step_state", step_state)
                              .Address("ring", ring)
                              .AtLeast("world_size", world_size, 1)
                              .Done());
  return Enqueue(stream, &DeviceKernels::PublishMetrics, {control, step_state, ring, world_size},
                 [](const PublishMetricsArguments& a) {
                   a.ring->entries[a.control->step % kMetricsRingSize] =
                       MetricsOf(*a.control, *a.step_state, a.world_size);
                   // The host polls `published` while steps run, and reads the entry after it.
                   std::atomic_ref(a.ring->published).fetch_add(1, std::memory_order_release);
                   a.step_state->loss_sum = 0;
                 });
}

}  // namespace reprise::kernels
