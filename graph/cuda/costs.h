// What a world takes from a cost file, and what it measures for one.
#ifndef REPRISE_GRAPH_CUDA_COSTS_H_
#define REPRISE_GRAPH_CUDA_COSTS_H_

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "graph/cuda/cuda_rank.h"
#include "graph/cuda/transport_trial.h"
#include "graph/machine.h"
#include "reprise/core/cost_file.h"
#include "reprise/graph/measure.h"

namespace reprise::internal {

// What a file of this device, in a job with this launch environment, is for: the same on all ranks that CreateCudaWorld
// lets have one. The rest is as initialised.
absl::StatusOr<CostFile> FileFor(int device, const LaunchEnvironment& launch);

// (c) Gives every rank the choices of GEMMs in rank 0's file, and returns those of transports; neither if it is not for
// what `here` is for. Then, and where a rank cannot use windows, transports are the default, and the reason says why.
// InvalidArgument, naming the file, for a choice that cannot run.
absl::StatusOr<AutoTransports> UseCostFile(Machine& world, CudaRank& rank, const CostFile& here,
                                           const std::string& path);

// (c) See reprise::Measure. Sets the choices of `file`, and returns those of transports. `try_transports`:
// TryTransports in a world of its own.
using Progress = absl::FunctionRef<void(absl::string_view line)>;
absl::StatusOr<AutoTransports> MeasureChoices(
    Machine& world, CudaRank& rank, const MeasureOptions& options,
    absl::FunctionRef<absl::StatusOr<TransportTimes>(Progress)> try_transports, CostFile& file);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_COSTS_H_
