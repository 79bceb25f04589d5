// Checks of what the user gives a session, before memory is taken.
#ifndef REPRISE_GRAPH_SESSION_CHECKS_H_
#define REPRISE_GRAPH_SESSION_CHECKS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "reprise/core/compute.h"
#include "reprise/core/plan.h"
#include "reprise/graph/train_session.h"

namespace reprise::internal {

// InvalidArgument, naming the call: the table must hold exactly the model's calls, with each function that is
// scheduled.
absl::Status CheckCompute(const Plan& plan, const ComputeTable& compute);

// InvalidArgument, naming the tensor and the rank: each external tensor of each local rank needs one buffer. Inputs of
// different ranks may share memory, as they are only read.
absl::Status CheckExternal(const Plan& plan, absl::Span<const int> local_ranks,
                           absl::Span<const ExternalBuffer> buffers);

// InvalidArgument, naming the field and its value.
absl::Status CheckOptimizer(const Optimizer& optimizer);
absl::Status CheckTrainOptions(const TrainOptions& options);
absl::Status CheckStepValues(const StepValues& values, const Plan& plan, float loss_scale);

// As BeginStep uploads it: the default is the mean.
float GradientDivisor(const StepValues& values, int world_size);

bool Overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_SESSION_CHECKS_H_
