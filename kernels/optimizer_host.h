// What the optimizers compute alike.
#ifndef REPRISE_KERNELS_OPTIMIZER_HOST_H_
#define REPRISE_KERNELS_OPTIMIZER_HOST_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/checks.h"
#include "kernels/numeric.h"
#include "kernels/parallel.h"
#include "reprise/kernels/command_arguments.h"

namespace reprise::kernels {

// This step's values, read at replay.
struct StepFactors {
  float learning_rate, divisor;
  double clip;  // times the sum gives the clipped gradient; 0: no clipping

  // Of an element of the sum. A norm that is far above clip_norm leaves the range of floats as its reciprocal does.
  float Gradient(float sum) const {
    return clip == 0 ? sum / divisor : static_cast<float>(static_cast<double>(sum) * clip);
  }
};

inline StepFactors ReadStepFactors(const UpdateArguments& u) {
  StepFactors factors = {u.control->learning_rate, u.control->gradient_divisor * u.control->loss_scale, 0};
  const double norm = std::sqrt(u.step_state->norm_squared);
  if (u.clip_norm > 0 && norm / factors.divisor > u.clip_norm) factors.clip = u.clip_norm / norm;
  return factors;
}

inline Checks& CheckUpdate(Checks& checks, const UpdateArguments& u) {
  return checks.Address("control", u.control)
      .Address("step_state", u.step_state)
      .NotNegative("clip_norm", u.clip_norm)
      .AtLeast("count", u.count, 0)
      .Address("gradient_sum", u.gradient_sum, u.count)
      .Address("master", u.master, u.count)
      .FloatingPoint("master_dtype", u.master_dtype);
}

// Replaces the master by blocks: body(first, count, master, updated) sees elements first to first + count - 1 as
// floats and writes `updated`.
template <class Body>
void UpdateMaster(const UpdateArguments& u, const Body& body) {
  WithFloatType(u.master_dtype, [&](auto type) {
    using Master = decltype(type);
    Master* master = static_cast<Master*>(u.master);
    ParallelForRanges(u.count, kGrain, [&](int64_t begin, int64_t end) {
      float buffer[kBlock], updated[kBlock];
      for (int64_t i = begin; i < end; i += kBlock) {
        const int64_t n = std::min(kBlock, end - i);
        body(i, n, Load(master + i, n, buffer), updated);
        Store(updated, n, WriteMode::kAssign, master + i);
      }
    });
  });
}

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_OPTIMIZER_HOST_H_
