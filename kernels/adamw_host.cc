#include "reprise/kernels/adamw.h"

#include <limits>

#include "kernels/device_kernels.h"
#include "kernels/optimizer_host.h"
#include "reprise/core/status_macros.h"

namespace reprise::kernels {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();
// The largest float whose square is one.
constexpr float kLargestGradient = 0x1.fffffep63f;

void Update(const AdamWArguments& a) {
  if (a.update.step_state->skip != SkipReason::kNone) return;
  const StepFactors step = ReadStepFactors(a.update);
  const double t = static_cast<double>(a.update.step_state->optimizer_steps);
  // Of the bias of the first moment and of the second one's root, to multiply with: the second moment itself, times
  // its own, may leave the range of floats.
  const float correction1 = static_cast<float>(1.0 / (1.0 - std::pow(static_cast<double>(a.beta1), t)));
  const float correction2 = static_cast<float>(std::sqrt(1.0 / (1.0 - std::pow(static_cast<double>(a.beta2), t))));
  const float keep = 1.0f - step.learning_rate * a.weight_decay;
  UpdateMaster(a.update, [&](int64_t first, int64_t count, const float* master, float* updated) {
    const float* sum = a.update.gradient_sum + first;
    float *m = a.first_moment + first, *v = a.second_moment + first;
    for (int64_t i = 0; i < count; ++i) {
      const float unbounded = step.Gradient(sum[i]);
      const float below = unbounded > kLargestGradient ? kLargestGradient : unbounded;
      const float gradient = below < -kLargestGradient ? -kLargestGradient : below;
      m[i] = a.beta1 * m[i] + (1.0f - a.beta1) * gradient;
      const float square = a.beta2 * v[i] + (1.0f - a.beta2) * gradient * gradient;
      v[i] = square > kLargest ? kLargest : square;
      const float direction = m[i] * correction1 / (std::sqrt(v[i]) * correction2 + a.epsilon);
      updated[i] = master[i] * keep - step.learning_rate * direction;
    }
  });
}

}  // namespace

absl::Status AdamW(Stream stream, const AdamWArguments& arguments) {
  Checks checks("AdamW");
  REPRISE_RETURN_IF_ERROR(CheckUpdate(checks, arguments.update)
                              .Address("first_moment", arguments.first_moment, arguments.update.count)
                              .Address("second_moment", arguments.second_moment, arguments.update.count)
                              .Done());
  return Enqueue(stream, &DeviceKernels::AdamW, arguments, Update);
}

}  // namespace reprise::kernels
