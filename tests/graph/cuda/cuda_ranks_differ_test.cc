// Ranks that differ, on devices.
#include "tests/graph/cuda/cuda_testing.h"
#include "tests/graph/ranks_differ.h"

namespace reprise::testing {

absl::StatusOr<std::shared_ptr<World>> NewWorldOfProcesses() { return NewCudaWorld(); }

}  // namespace reprise::testing
