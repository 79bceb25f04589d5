// That attention is refused by name where a device has too little shared memory. Needs no device.
#include <gtest/gtest.h>

#include <string>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/launch.h"
#include "tests/testing/status_matchers.h"

namespace reprise::kernels {
namespace {

using reprise::testing::IsOk;
using reprise::testing::StatusIs;

// Bytes of shared memory that a block may have: compute capability 9.0, 8.0, 8.6 and 7.5.
constexpr int64_t kH200 = 232448, kA100 = 166912, kA40 = 101376, kT4 = 65536;

TEST(AttentionMemoryTest, KernelsThatFitAreNotRefused) {
  for (const int64_t width : {1, 32, 33, 64, 65, 128, 1000}) {
    EXPECT_THAT(CheckAttentionMemory("CausalAttention", width, AttentionSharedBytes, kH200), IsOk());
    EXPECT_THAT(CheckAttentionMemory("CausalAttention", width, AttentionSharedBytes, kA100), IsOk());
    EXPECT_THAT(CheckAttentionMemory("CausalAttentionBackward", width, AttentionBackwardSharedBytes, kH200), IsOk());
  }
  EXPECT_THAT(CheckAttentionMemory("CausalAttentionBackward", 64, AttentionBackwardSharedBytes, kA100), IsOk());
  EXPECT_THAT(CheckAttentionMemory("CausalAttentionBackward", 32, AttentionBackwardSharedBytes, kA40), IsOk());
  // Exactly what is needed.
  EXPECT_THAT(CheckAttentionMemory("CausalAttentionBackward", 64, AttentionBackwardSharedBytes, 104448), IsOk());
}

TEST(AttentionMemoryTest, OthersAreRefusedWithTheNumbersAndWhatHelps) {
  const auto exhausted = [](const char* message) { return StatusIs(absl::StatusCode::kResourceExhausted, message); };
  EXPECT_THAT(CheckAttentionMemory("CausalAttentionBackward", 65, AttentionBackwardSharedBytes, kA100),
              exhausted("CausalAttentionBackward on heads of 65 elements needs 169984 bytes of shared memory, but a "
                        "block of this device has at most 166912; give it more heads, of at most 64 elements each"));
  EXPECT_THAT(CheckAttentionMemory("CausalAttentionBackward", 64, AttentionBackwardSharedBytes, 104447),
              exhausted("CausalAttentionBackward on heads of 64 elements needs 104448 bytes of shared memory, but a "
                        "block of this device has at most 104447; give it more heads, of at most 32 elements each"));
  EXPECT_THAT(CheckAttentionMemory("CausalAttention", 128, AttentionSharedBytes, kA40),
              exhausted("CausalAttention on heads of 128 elements needs 118784 bytes of shared memory, but a block of "
                        "this device has at most 101376; give it more heads, of at most 64 elements each"));
  EXPECT_THAT(CheckAttentionMemory("CausalAttentionBackward", 16, AttentionBackwardSharedBytes, kT4),
              exhausted("CausalAttentionBackward on heads of 16 elements needs 71680 bytes of shared memory, but a "
                        "block of this device has at most 65536; run it on another device"));
}

}  // namespace
}  // namespace reprise::kernels
