#include "reprise/kernels/sgd.h"

#include "kernels/device_kernels.h"
#include "kernels/optimizer_host.h"
#include "reprise/core/status_macros.h"

namespace reprise::kernels {
namespace {

void Update(const SgdArguments& a) {
  if (a.update.step_state->skip != SkipReason::kNone) return;
  const StepFactors step = ReadStepFactors(a.update);
  UpdateMaster(a.update, [&](int64_t first, int64_t count, const float* master, float* updated) {
    const float* sum = a.update.gradient_sum + first;
    float* velocity = a.momentum == 0 ? nullptr : a.velocity + first;
    for (int64_t i = 0; i < count; ++i) {
      float direction = step.Gradient(sum[i]) + a.weight_decay * master[i];
      if (velocity != nullptr) direction = velocity[i] = a.momentum * velocity[i] + direction;
      updated[i] = master[i] - step.learning_rate * direction;
    }
  });
}

}  // namespace

absl::Status Sgd(Stream stream, const SgdArguments& arguments) {
  Checks checks("Sgd");
  REPRISE_RETURN_IF_ERROR(
      CheckUpdate(checks, arguments.update)
          .Address("velocity", arguments.velocity, arguments.momentum == 0 ? 0 : arguments.update.count)
          .Done());
  return Enqueue(stream, &DeviceKernels::Sgd, arguments, Update);
}

}  // namespace reprise::kernels
