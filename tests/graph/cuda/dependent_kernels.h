// Kernels for tests of order: two of which the second may start before the first has ended, and one that waits for the
// host.
#ifndef REPRISE_TESTS_GRAPH_CUDA_DEPENDENT_KERNELS_H_
#define REPRISE_TESTS_GRAPH_CUDA_DEPENDENT_KERNELS_H_

#include <cuda_runtime_api.h>

namespace reprise::testing {

// Waits until `*opened`, of the host, is more than `*passed`, then adds 1 to that.
cudaError_t LaunchGate(cudaStream_t stream, const volatile int* opened, int* passed);
cudaError_t LaunchFirst(cudaStream_t stream, int* counter);
// With the attribute that NCCL gives its symmetric kernels (programmatic stream serialisation).
cudaError_t LaunchProgrammaticSecond(cudaStream_t stream, int* counter);

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_CUDA_DEPENDENT_KERNELS_H_
