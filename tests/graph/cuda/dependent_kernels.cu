#include "tests/graph/cuda/dependent_kernels.h"

namespace reprise::testing {
namespace {

__global__ void Increment(int* counter) { ++*counter; }

__global__ void Gate(const volatile int* opened, int* passed) {
  while (*opened <= *passed) __nanosleep(1000);
  ++*passed;
}

}  // namespace

cudaError_t LaunchGate(cudaStream_t stream, const volatile int* opened, int* passed) {
  Gate<<<1, 1, 0, stream>>>(opened, passed);
  return cudaGetLastError();
}

cudaError_t LaunchFirst(cudaStream_t stream, int* counter) {
  Increment<<<1, 1, 0, stream>>>(counter);
  return cudaGetLastError();
}

cudaError_t LaunchProgrammaticSecond(cudaStream_t stream, int* counter) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(1);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, Increment, counter);
}

}  // namespace reprise::testing
