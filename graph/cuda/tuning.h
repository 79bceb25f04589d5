// Choices among equal kernels that were measured, kept in a file: what is chosen once stays, so that results do too.
#ifndef REPRISE_GRAPH_CUDA_TUNING_H_
#define REPRISE_GRAPH_CUDA_TUNING_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/cuda/cuda_rank.h"
#include "graph/cuda/transport_trial.h"
#include "graph/machine.h"

namespace reprise::internal {

// What choices are for, in messages and in the file.
absl::StatusOr<std::string> TunedDevice(int device);

// (c) Gives every rank the choices of rank 0's file, if that exists. InvalidArgument if it cannot be understood.
absl::Status LoadTuning(Machine& world, CudaRank& rank, const std::string& path);

// (c) What rank 0's file has for transports that are unset, or else what `measure`, which is collective, finds and the
// file then keeps: the same on every rank. All default where a rank cannot use windows, whatever the file has.
absl::StatusOr<AutoTransports> TuneTransports(Machine& world, CudaRank& rank, const std::string& path,
                                              const std::function<absl::StatusOr<TransportTimes>()>& measure);

// (c) Rank 0 measures for what ran so far and has no choice yet, while the devices copy to each other where they can,
// and adds what the file still lacks; every rank gets its choices, so that no vote needs them.
absl::Status Tune(Machine& world, CudaRank& rank, const std::string& path);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_TUNING_H_
