// The models that step_bench measures: the same shapes as bench programs of other systems.
#ifndef REPRISE_BENCH_STEP_WORKLOADS_H_
#define REPRISE_BENCH_STEP_WORKLOADS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/core/compute.h"
#include "reprise/core/model.h"

namespace reprise::bench {

struct Workload {
  std::string name = {};
  Model model = {};
  ComputeTable compute = {};
  double flops = 0;  // of the GEMMs of one microbatch, forward and backward
};

// All bf16, without biases, one unit per layer, cross-entropy over the last activation's columns as the loss:
//   seed4  4 x Linear(16384, 16384) with ReLU, 8192 tokens; the input's gradient is kept
//   mlp4   4 x (4096 -> 16384 -> 4096, GELU), 4096 tokens
//   mlp4s  4 x (1024 -> 4096 -> 1024, GELU), 1024 tokens
//   tiny   3 x Linear(64, 64) with ReLU, 32 tokens: for tests
// NotFound, with the names, for another one. The inputs are external if `external`.
absl::StatusOr<Workload> MakeWorkload(const std::string& name, bool external);

}  // namespace reprise::bench

#endif  // REPRISE_BENCH_STEP_WORKLOADS_H_
