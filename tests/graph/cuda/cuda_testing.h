// Worlds for tests on devices: one rank alone, or the ranks that the test's own launcher started.
#ifndef REPRISE_TESTS_GRAPH_CUDA_CUDA_TESTING_H_
#define REPRISE_TESTS_GRAPH_CUDA_CUDA_TESTING_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "graph/machine.h"
#include "reprise/core/status_macros.h"
#include "reprise/graph/cuda_world.h"
#include "reprise/graph/launch_environment.h"
#include "tests/testing/share_device.h"

namespace reprise::testing {

// Short, so that a test of a missing rank does not take long, and long enough for NCCL to start.
inline constexpr absl::Duration kTestDeadline = absl::Seconds(40);

inline absl::StatusOr<std::shared_ptr<internal::Machine>> NewCudaWorld(CudaWorldOptions options = {},
                                                                       absl::Duration deadline = kTestDeadline) {
  options.deadline = deadline;
  options.share_device = SharesDevice();
  REPRISE_ASSIGN_OR_RETURN(const LaunchEnvironment launch, DetectLaunch());
  REPRISE_ASSIGN_OR_RETURN(std::shared_ptr<World> world, CreateCudaWorld(launch, options));
  return internal::MachineOf(std::move(world));
}

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_CUDA_CUDA_TESTING_H_
