// Compute functions for any model, on the host: everything that a call writes depends on everything that it may read.
// A wrong read anywhere changes what a step leaves behind.
#ifndef REPRISE_TESTS_CONFORMANCE_HASH_COMPUTE_H_
#define REPRISE_TESTS_CONFORMANCE_HASH_COMPUTE_H_

#include "absl/status/statusor.h"
#include "reprise/core/compute.h"

namespace reprise::testing {

// The numbers mean nothing, but are finite unless something read is NaN, and then NaN. The model is borrowed.
absl::StatusOr<ComputeTable> HashCompute(const Model& model);

// Values for PlanRunner, small and different.
float HashParameter(ParameterId parameter, int64_t element);
double HashInput(int rank, int64_t microbatch, TensorId tensor, int64_t element);

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_CONFORMANCE_HASH_COMPUTE_H_
