// A simple prediction of when commands run: bytes over bandwidth, FLOPs over rate, in the order that lanes and waits
// allow.
#ifndef REPRISE_CORE_COST_MODEL_H_
#define REPRISE_CORE_COST_MODEL_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "reprise/core/plan.h"
#include "reprise/core/timeline.h"

namespace reprise {

// FLOPs of one execution of a call.
struct CallFlops {
  double forward = 0, backward = 0;
};

// Rates are per second and per rank. The initialisers are of one H200 of two that NVLink connects, see
// bench/results: what `step_bench` measured there.
struct CostModel {
  double flops = 750e12;                        // of compute functions
  double memory_bytes = 4.0e12;                 // of pack, accumulate and the optimizer: bytes read and written
  double gather_bytes = 350e9;                  // TransferredBytes of an all-gather
  double reduce_bytes = 300e9;                  // TransferredBytes of a reduction
  double collective_us = 12;                    // that a collective takes however small it is
  double command_us = 3;                        // that every other command with work takes
  std::map<std::string, CallFlops> calls = {};  // by name; calls that are missing: EstimateFlops
};

// 2 FLOPs forward and 4 backward for each row of the call's first output, or else first input, and each element of the
// parameters, with at least two dimensions, that it reads; right for linear layers. The rows of a tensor are all its
// extents but the last.
CallFlops EstimateFlops(const Model& model, CallId call);

// One rank's timeline of these schedules, indices into Plan::schedules, one replay after another. InvalidArgument for
// an index out of range or a rate that is not positive.
absl::StatusOr<Timeline> PredictTimeline(const Plan& plan, const std::vector<int>& schedules, const CostModel& costs);

// Reads an object whose members are the fields above by name (all may be missing), or the list that
// `step_bench --json` writes, of which it takes the rates that were measured there. InvalidArgument, saying where, for
// anything else.
absl::StatusOr<CostModel> CostModelFromJson(absl::string_view json);

}  // namespace reprise

#endif  // REPRISE_CORE_COST_MODEL_H_
