// The founding tests on devices, captured and eager.
#include "tests/graph/cuda/cuda_testing.h"
#include "tests/graph/founding/founding.h"

namespace reprise::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, FoundingTest,
                         ::testing::Values(Backend{"Graph", [] { return NewCudaWorld(); }, Execution::kGraph},
                                           Backend{"Eager", [] { return NewCudaWorld(); }, Execution::kEager}),
                         BackendName);

}  // namespace
}  // namespace reprise::testing
