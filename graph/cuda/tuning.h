// Choices among equal kernels that were measured, kept in a file: what is chosen once stays, so that results do too.
#ifndef REPRISE_GRAPH_CUDA_TUNING_H_
#define REPRISE_GRAPH_CUDA_TUNING_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/cuda/cuda_rank.h"
#include "reprise/graph/world.h"

namespace reprise::internal {

// What choices are for, in messages and in the file.
absl::StatusOr<std::string> TunedDevice(int device);

// (c) Gives every rank the choices of rank 0's file, if that exists. InvalidArgument if it cannot be understood.
absl::Status LoadTuning(World& world, CudaRank& rank, const std::string& path);

// (c) What rank 0's file has for kAuto, or else what TryTransports finds, which the file then keeps: the same on every
// rank. All default where a rank cannot use windows, whatever the file has.
absl::StatusOr<AutoTransports> TuneTransports(const std::shared_ptr<World>& world, CudaRank& rank,
                                              const std::string& path);

// (c) Rank 0 measures for what ran so far and has no choice yet, and adds what the file still lacks; every rank gets
// its choices, so that no vote needs them.
absl::Status Tune(World& world, CudaRank& rank, const std::string& path);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_TUNING_H_
