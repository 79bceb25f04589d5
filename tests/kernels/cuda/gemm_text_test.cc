// Text of products and of their algorithms, as a cost file keeps them. Needs no device.
#include <gtest/gtest.h>

#include <optional>

#include "kernels/cuda/gemm.h"

namespace reprise::kernels {
namespace {

TEST(GemmTextTest, KeysAndChoicesComeBack) {
  const GemmKey key = {.m = 1,
                       .n = 2,
                       .k = int64_t{1} << 40,
                       .transpose_a = 1,
                       .in = 1,
                       .a_alignment = 16,
                       .workspace_bytes = 33554432,
                       .epilogue = CUBLASLT_EPILOGUE_DGELU,
                       .h_alignment = 256};
  EXPECT_EQ(ToText(key), "1 2 1099511627776 1 0 0 1 0 16 0 0 33554432 192 256");
  GemmKey read;
  ASSERT_TRUE(FromText(ToText(key), read));
  EXPECT_EQ(read, key);

  std::optional<GemmAlgorithm> choice = GemmAlgorithm();
  choice->data[0] = 0xfedcba9876543210u;
  choice->data[7] = 10;
  EXPECT_EQ(ToText(choice), "fedcba9876543210 0 0 0 0 0 0 a");
  std::optional<GemmAlgorithm> read_choice;
  ASSERT_TRUE(FromText(ToText(choice), read_choice));
  EXPECT_EQ(ToText(read_choice), ToText(choice));
  ASSERT_TRUE(FromText("none", read_choice));
  EXPECT_FALSE(read_choice.has_value());
  EXPECT_EQ(ToText(read_choice), "none");
}

TEST(GemmTextTest, OtherTextIsRefused) {
  GemmKey key;
  for (const char* text : {"", "1", "1 2 3 0 0 0 1 1 256 256 256 0 1", "1 2 3 0 0 0 1 1 256 256 256 0 1 256 7",
                           "1 2 x 0 0 0 1 1 256 256 256 0 1 256", "1 2  0 0 0 1 1 256 256 256 0 1 256"}) {
    EXPECT_FALSE(FromText(text, key)) << text;
  }
  std::optional<GemmAlgorithm> choice;
  for (const char* text :
       {"", "0", "None", "1 2 3 4 5 6 7", "1 2 3 4 5 6 7 8 9", "-1 2 3 4 5 6 7 8", "1 2 3 4 5 6 7 g"}) {
    EXPECT_FALSE(FromText(text, choice)) << text;
  }
}

}  // namespace
}  // namespace reprise::kernels
