// From a model to a plan. Pure: no rank, no device, no environment; equal inputs give equal plans.
#ifndef REPRISE_CORE_PLANNER_H_
#define REPRISE_CORE_PLANNER_H_

#include "absl/status/statusor.h"
#include "reprise/core/model.h"
#include "reprise/core/plan.h"

namespace reprise {

// Forward and backward of a microbatch, and the step. Cost: O(s log s) in the size s of the schedules.
// InvalidArgument: a bad option; no loss; a trainable parameter that no call gives a gradient to; an output gradient
//   that backward may read but no consumer writes.
// ResourceExhausted, with the numbers: a call needs more weight slots than there are, or writes the gradients of more
//   units at once than there are gradient slots; a graph of more than a million commands; buffers of more bytes than an
//   int64 counts.
absl::StatusOr<Plan> PlanTraining(const Model& model, int world_size, const PlanOptions& options);

// Forward only: `first` gathers what is not resident, `body` follows any other replay.
absl::StatusOr<Plan> PlanForward(const Model& model, int world_size, const PlanOptions& options);

}  // namespace reprise

#endif  // REPRISE_CORE_PLANNER_H_
