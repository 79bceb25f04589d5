// The conformance suites on devices, captured and eager.
#include "tests/conformance/conformance.h"
#include "tests/graph/cuda/cuda_testing.h"

namespace reprise::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, ConformanceTest,
                         ::testing::Values(Backend{"Graph", [] { return NewCudaWorld(); }, Execution::kGraph},
                                           Backend{"Eager", [] { return NewCudaWorld(); }, Execution::kEager}),
                         BackendName);

}  // namespace
}  // namespace reprise::testing
