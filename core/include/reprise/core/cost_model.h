// A simple prediction of when commands run: bytes over bandwidth, FLOPs over rate, in the order that lanes and waits
// allow.
#ifndef REPRISE_CORE_COST_MODEL_H_
#define REPRISE_CORE_COST_MODEL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/core/plan.h"
#include "reprise/core/timeline.h"

namespace reprise {

// FLOPs of one execution of a call.
struct CallFlops {
  double forward = 0, backward = 0;
  friend bool operator==(const CallFlops&, const CallFlops&) = default;
};

// Rates are per second and per rank. The initialisers are of one H200 of two that NVLink connects: `flops` and the
// bandwidths are the best of bench/results/2026-11-30-step_bench.json, with the default transport and compute beside
// it; `memory_bandwidth` is a copy of 256 MiB in bench/results/2026-11-30-kernel_bench.json; `collective_us` and
// `command_us` are read off the timeline of `step_bench --workloads=tiny --profile`.
struct CostModel {
  double flops = 709e12;             // of compute functions
  double memory_bandwidth = 4.1e12;  // read and written by all commands that move or combine values
  double gather_bandwidth = 172e9;   // TransferredBytes of an all-gather
  double reduce_bandwidth = 203e9;   // TransferredBytes of a reduction
  double collective_us = 12;         // that a collective takes however small it is
  double command_us = 3;             // that every other command with work takes
  // That the bandwidths are of; for more ranks they are guesses. Unset: of as many as the plan has.
  std::optional<int> ranks = 2;
  // By name; calls that are missing: EstimateFlops. A phase takes at least the time to read and write its buffers.
  std::map<std::string, CallFlops> calls = {};

  friend bool operator==(const CostModel&, const CostModel&) = default;
};

// 2 FLOPs forward and 4 backward for each row of a tensor and each element of the parameters that are matrices: right
// for linear layers. The tensor is the call's first output that is no scalar, or else its first such input; its rows
// are all its extents but the last. The matrices are the parameters of at least two dimensions that the call names or
// that are of its `units`; `forward_only_units` are looked up, not multiplied.
CallFlops EstimateFlops(const Model& model, CallId call);

// Most commands of a timeline that is predicted.
inline constexpr int64_t kMaxPredictedCommands = 1 << 22;

// The timeline of rank 0 for these schedules, indices into Plan::schedules, one replay after another: a command starts
// when the one before it on its lane and those that it waits for are done. Concurrent commands do not slow each other.
// Begin and End take no time and have no span. InvalidArgument for an index out of range, a wait for what is no earlier
// command, a lane that does not exist, more than kMaxPredictedCommands, a rate that is not positive and finite, another
// figure that is negative, figures that give more than a century, and a call that the model lacks.
absl::StatusOr<Timeline> PredictTimeline(const Plan& plan, const std::vector<int>& schedules, const CostModel& costs);

}  // namespace reprise

#endif  // REPRISE_CORE_COST_MODEL_H_
