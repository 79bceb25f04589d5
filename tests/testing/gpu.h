// Tests that need a GPU: without one they are skipped, or fail if REPRISE_REQUIRE_GPU=1 says that there must be one.
#ifndef REPRISE_TESTS_TESTING_GPU_H_
#define REPRISE_TESTS_TESTING_GPU_H_

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

namespace reprise {

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) return;
    cudaGetLastError();
    const std::string why = std::string("no GPU: ") + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")";
    const char* required = std::getenv("REPRISE_REQUIRE_GPU");
    if (required != nullptr && std::string(required) == "1") FAIL() << why << ", and REPRISE_REQUIRE_GPU is 1";
    GTEST_SKIP() << why;
  }
};

}  // namespace reprise

#endif  // REPRISE_TESTS_TESTING_GPU_H_
