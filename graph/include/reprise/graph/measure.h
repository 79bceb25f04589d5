// Measuring a machine once, for the file that CudaWorldOptions::cost_file names.
#ifndef REPRISE_GRAPH_MEASURE_H_
#define REPRISE_GRAPH_MEASURE_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "reprise/core/cost_file.h"
#include "reprise/graph/world.h"

namespace reprise {

struct MeasureOptions {
  std::function<absl::Status()> run = {};  // (c) called first: may run what GEMMs are to be measured for
  std::function<void(absl::string_view line)> progress = {};  // called on every rank with what was measured, for people
};

// (c) Measures, and makes sessions of this world use from then on,
//
//  * which of cuBLASLt's kernels is quickest for each GEMM that ran in this world, as in sessions that were made from
//    it: on rank 0, about 0.2 s for each of less than 0.1 ms (longer ones keep the first choice), while the devices
//    copy to each other where they can. Results may differ in rounding from those before;
//  * which transport is quickest for units of each size, on small models, in a world of its own. About 8 s, and up to
//    half of the free memory meanwhile (two H200, NCCL 2.28.9). There are no choices where there is one rank, a rank
//    cannot use the others' memory, or one has too little of its own.
//
// Nothing else should run on the devices. The same on every rank: key, transports and GEMMs. The costs are as
// initialised; step_bench --measure adds those that it measures. Unavailable for host ranks, where nothing is to be
// chosen.
absl::StatusOr<CostFile> Measure(World& world, const MeasureOptions& options = {});

// Whole or not at all: readers see the file of before or this one. Unavailable, with the path and the reason.
absl::Status WriteCostFile(const std::string& path, const CostFile& file);
// Unavailable if the file cannot be read; InvalidArgument, naming it, for what CostFileFromJson refuses and for more
// than 16 MiB.
absl::StatusOr<CostFile> ReadCostFile(const std::string& path);

}  // namespace reprise

#endif  // REPRISE_GRAPH_MEASURE_H_
