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

TEST(BFloat16Test, EveryNanStaysAQuietNanOfItsSign) {
  for (uint32_t word : {0x7f800001u, 0x7fffffffu, 0x7fc00000u, 0xff800001u, 0xffffffffu}) {
    const BFloat16 value(std::bit_cast<float>(word));
    EXPECT_TRUE(std::isnan(float(value))) << std::hex << word;
    EXPECT_EQ(value.bits & 0x0040, 0x0040) << std::hex << word;
    EXPECT_EQ(value.bits >> 15, word >> 31) << std::hex << word;
  }
}

}  // namespace
}  // namespace reprise
