// Addresses of other ranks' memory are believed only where a rank's own token is read through them.
#include "graph/cuda/peer_addresses.h"

#include <cuda_runtime_api.h>

#include <vector>

#include "tests/testing/status_matchers.h"

namespace reprise::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

TEST(PeerAddressesTest, WhatHoldsAnotherTokenOrNoneIsNamed) {
  const std::vector<uint32_t> tokens = {5, 0xfedcba98u, 7};
  uint32_t* words = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&words), tokens.size() * sizeof(uint32_t)), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(words, tokens.data(), tokens.size() * sizeof(uint32_t), cudaMemcpyHostToDevice), cudaSuccess);
  const auto check = [&](const std::vector<const uint32_t*>& at) {
    return CheckTokens(at, tokens, /*stream=*/nullptr);
  };
  EXPECT_THAT(check({words, words + 1, words + 2}), IsOk());
  EXPECT_THAT(check({words, words + 2, words + 1}),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("the memory of rank 1 is not where NCCL 2."),
                             HasSubstr("its token 4275878552 reads as 7"), HasSubstr("use a version of NCCL"))));
  // The host would read these for the device, and end.
  const uint32_t on_host = 7;
  const std::vector<const uint32_t*> nowhere = {nullptr, reinterpret_cast<const uint32_t*>(uintptr_t{1} << 40),
                                                &on_host};
  for (const uint32_t* const address : nowhere) {
    EXPECT_THAT(check({words, words + 1, address}),
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr("the memory of rank 2"), HasSubstr("no device memory is there"))));
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  ASSERT_EQ(cudaFree(words), cudaSuccess);
}

}  // namespace
}  // namespace reprise::internal
