#include "reprise/core/dtype.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using reprise::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr DType kAll[] = {DType::kFloat32, DType::kBFloat16, DType::kInt32, DType::kUInt8};

TEST(DTypeTest, NamesAreParsedBack) {
  for (DType dtype : kAll) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const DType parsed, ParseDType(Name(dtype)));
    EXPECT_EQ(parsed, dtype);
  }
  EXPECT_EQ(Name(DType::kBFloat16), "bf16");
}

TEST(DTypeTest, UnknownNameIsRefusedWithTheNamesThereAre) {
  EXPECT_THAT(ParseDType("float64"), StatusIs(absl::StatusCode::kInvalidArgument,
                                              AllOf(HasSubstr("\"float64\""), HasSubstr("\"f32\", \"bf16\""))));
  EXPECT_THAT(ParseDType(""), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unknown dtype")));
}

TEST(DTypeTest, SizesAndKinds) {
  EXPECT_EQ(SizeOf(DType::kFloat32), 4);
  EXPECT_EQ(SizeOf(DType::kBFloat16), 2);
  EXPECT_EQ(SizeOf(DType::kInt32), 4);
  EXPECT_EQ(SizeOf(DType::kUInt8), 1);
  EXPECT_TRUE(IsFloatingPoint(DType::kFloat32));
  EXPECT_TRUE(IsFloatingPoint(DType::kBFloat16));
  EXPECT_FALSE(IsFloatingPoint(DType::kInt32));
  EXPECT_FALSE(IsFloatingPoint(DType::kUInt8));
}

TEST(BFloat16Test, EveryValueSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    BFloat16 value;
    value.bits = static_cast<uint16_t>(bits);
    if (std::isnan(float(value))) continue;
    EXPECT_EQ(BFloat16(float(value)).bits, value.bits);
  }
}

TEST(BFloat16Test, RoundsToNearestTiesToEven) {
  // 1 + 2^-7 is the next value after 1.
  EXPECT_EQ(float(BFloat16(1.0f + 0x1p-8f)), 1.0f);               // tie, to the even 1
  EXPECT_EQ(float(BFloat16(1.0f + 0x1.8p-7f)), 1.0f + 0x1p-6f);   // tie, to the even 1 + 2^-6
  EXPECT_EQ(float(BFloat16(1.0f + 0x1.02p-8f)), 1.0f + 0x1p-7f);  // just above a tie
  EXPECT_EQ(float(BFloat16(1.0f + 0x1.fep-9f)), 1.0f);            // just below a tie
  EXPECT_EQ(float(BFloat16(-1.0f - 0x1.02p-8f)), -1.0f - 0x1p-7f);
}

TEST(BFloat16Test, LargestFloatsRoundToInfinity) {
  EXPECT_EQ(float(BFloat16(std::numeric_limits<float>::max())), std::numeric_limits<float>::infinity());
  EXPECT_EQ(float(BFloat16(-std::numeric_limits<float>::infinity())), -std::numeric_limits<float>::infinity());
}

TEST(BFloat16Test, EveryNanBecomesTheCanonicalOne) {
  for (uint32_t bits = 1; bits <= 0x7fffff; bits = bits * 2 + 1) {
    for (uint32_t sign : {0u, 0x80000000u}) {
      const uint32_t lowest = sign | 0x7f800000u | bits, highest = (sign | 0x7fffffffu) - bits / 2;
      EXPECT_EQ(BFloat16(std::bit_cast<float>(lowest)).bits, 0x7fff) << std::hex << lowest;
      EXPECT_EQ(BFloat16(std::bit_cast<float>(highest)).bits, 0x7fff) << std::hex << highest;
    }
  }
  static_assert(BFloat16(std::numeric_limits<float>::quiet_NaN()).bits == 0x7fff);
}

}  // namespace
}  // namespace reprise
