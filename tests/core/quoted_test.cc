#include "core/model/quoted.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/model.h"
#include "tests/testing/status_matchers.h"

namespace reprise::internal {
namespace {

using reprise::testing::StatusIs;
using ::testing::HasSubstr;

std::string Utf8(uint32_t code) {
  const auto rest = [&](int shift) { return static_cast<char>(0x80 | (code >> shift & 0x3f)); };
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {static_cast<char>(0xc0 | code >> 6), rest(0)};
  if (code < 0x10000) return {static_cast<char>(0xe0 | code >> 12), rest(6), rest(0)};
  return {static_cast<char>(0xf0 | code >> 18), rest(12), rest(6), rest(0)};
}

bool IsSurrogate(uint32_t code) { return code >= 0xd800 && code <= 0xdfff; }

TEST(FirstUnprintableTest, NamesTheCodePointItsKindAndItsByte) {
  EXPECT_EQ(FirstUnprintable(""), "");
  EXPECT_EQ(FirstUnprintable("block0.w \xc3\xa4"), "");
  EXPECT_EQ(FirstUnprintable("a\xe2\x80\x8b"), "U+200B, a format character, at byte 1");
  EXPECT_EQ(FirstUnprintable("\xef\xbb\xbfx"), "U+FEFF, a format character, at byte 0");
  EXPECT_EQ(FirstUnprintable("\xc3\xa4\xc2\xad"), "U+00AD, a format character, at byte 2");
  EXPECT_EQ(FirstUnprintable("a\xf3\xa0\x81\x81"), "U+E0041, an ignorable character, at byte 1");
  EXPECT_EQ(FirstUnprintable("a\xef\xb8\x8f"), "U+FE0F, an ignorable character, at byte 1");
  EXPECT_EQ(FirstUnprintable("a\xc2\xa0"), "U+00A0, a space or separator other than U+0020, at byte 1");
  EXPECT_EQ(FirstUnprintable("\xee\x80\x80"), "U+E000, a private-use character, at byte 0");
  EXPECT_EQ(FirstUnprintable("\xef\xbf\xbf"), "U+FFFF, a noncharacter, at byte 0");
  EXPECT_EQ(FirstUnprintable("\x1b[0m"), "U+001B, a control character, at byte 0");
  EXPECT_EQ(FirstUnprintable("ab\xff"), "what is not UTF-8 at byte 2");
}

// How many code points each kind has, in Unicode 15: a range with a wrong end changes one of them.
TEST(FirstUnprintableTest, EveryCodePointIsOfItsKind) {
  struct Kind {
    const char* text;
    int count;
  };
  const std::vector<Kind> kinds = {
      {"control character", 65},           // Cc
      {"space or separator", 19},          // Zs but U+0020, Zl, Zp, and the Braille blank
      {"format character", 170 - 97},      // Cf but for tags, which are counted among the ignorable
      {"ignorable character", 4174 - 41},  // Default_Ignorable_Code_Point, but for those of plane 0 and 1 in Cf
      {"private-use character", 137468},   // Co
      {"noncharacter", 66},
  };
  std::vector<int> counts(kinds.size());
  for (uint32_t code = 0; code <= 0x10ffff; ++code) {
    if (IsSurrogate(code)) continue;
    const std::string found = FirstUnprintable(Utf8(code));
    if (found.empty()) continue;
    for (size_t k = 0; k < kinds.size(); ++k) counts[k] += found.find(kinds[k].text) != std::string::npos;
  }
  for (size_t k = 0; k < kinds.size(); ++k) EXPECT_EQ(counts[k], kinds[k].count) << kinds[k].text;
}

// No two names that show the same are both taken.
TEST(FirstUnprintableTest, NamesThatLookAlikeAreRefused) {
  for (const uint32_t code :
       {0xadu,   0x34fu,  0x61cu,  0x115fu, 0x180eu,  0x200bu,  0x200du,  0x2060u,  0x2064u,  0x206fu,
        0x3164u, 0xfe00u, 0xfeffu, 0xfff9u, 0x1d173u, 0xe0001u, 0xe0020u, 0xe007fu, 0xe0100u, 0xfffffu}) {
    ModelBuilder builder;
    builder.AddUnit("block");
    builder.AddUnit("block" + Utf8(code));
    EXPECT_THAT(builder.Build(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("name of unit 1, ", Quoted("block" + Utf8(code)), ", holds U+"))));
  }
}

TEST(QuotedTest, EscapesWhatCannotBeSeen) {
  EXPECT_EQ(Quoted("caf\xc3\xa9"), "\"caf\xc3\xa9\"");
  EXPECT_EQ(Quoted("a\xe2\x80\x8b"), "\"a\\xe2\\x80\\x8b\"");
  EXPECT_EQ(Quoted(std::string(81, 'n')), absl::StrCat("\"", std::string(80, 'n'), "...\" (81 bytes)"));
}

}  // namespace
}  // namespace reprise::internal
