#include "core/model/quoted.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace reprise::internal {
namespace {

// The character at the start of a UTF-8 text, and its bytes; 0 bytes if there is none.
struct Character {
  uint32_t code = 0;
  size_t length = 0;
};

Character FirstCharacter(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t length = lead >= 0xc2 && lead <= 0xdf   ? 2
                        : lead >= 0xe0 && lead <= 0xef ? 3
                        : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                       : 0;
  if (length == 0 || text.size() < length) return {};
  uint32_t code = lead & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  // Overlong forms, surrogates and what lies beyond U+10FFFF.
  const bool bad = (length == 3 && code < 0x800) || (code >= 0xd800 && code <= 0xdfff) ||
                   (length == 4 && (code < 0x10000 || code > 0x10ffff));
  return bad ? Character{} : Character{code, length};
}

// Characters without a look of their own.
struct Hidden {
  uint32_t first, last;
  const char* kind;
};
constexpr const char* kControl = "a control character";
constexpr const char* kSpace = "a space or separator other than U+0020";
constexpr const char* kFormat = "a format character";         // Unicode's general category Cf
constexpr const char* kIgnorable = "an ignorable character";  // Default_Ignorable_Code_Point, as far as not kFormat
constexpr const char* kPrivate = "a private-use character";
constexpr const char* kNoncharacter = "a noncharacter";
// Unicode 15, in order and apart; not the noncharacters at the end of each plane.
constexpr Hidden kHidden[] = {
    {0x0, 0x1f, kControl},        {0x7f, 0x9f, kControl},
    {0xa0, 0xa0, kSpace},         {0xad, 0xad, kFormat},
    {0x34f, 0x34f, kIgnorable},   {0x600, 0x605, kFormat},
    {0x61c, 0x61c, kFormat},      {0x6dd, 0x6dd, kFormat},
    {0x70f, 0x70f, kFormat},      {0x890, 0x891, kFormat},
    {0x8e2, 0x8e2, kFormat},      {0x115f, 0x1160, kIgnorable},  // Hangul fillers
    {0x1680, 0x1680, kSpace},     {0x17b4, 0x17b5, kIgnorable},
    {0x180b, 0x180d, kIgnorable},  // variation selectors
    {0x180e, 0x180e, kFormat},    {0x180f, 0x180f, kIgnorable},
    {0x2000, 0x200a, kSpace},     {0x200b, 0x200f, kFormat},  // zero-width space and joiners, direction marks
    {0x2028, 0x2029, kSpace},     {0x202a, 0x202e, kFormat},
    {0x202f, 0x202f, kSpace},     {0x205f, 0x205f, kSpace},
    {0x2060, 0x2064, kFormat},    {0x2065, 0x2065, kIgnorable},
    {0x2066, 0x206f, kFormat},    {0x2800, 0x2800, kSpace},  // the Braille pattern without dots
    {0x3000, 0x3000, kSpace},     {0x3164, 0x3164, kIgnorable},
    {0xe000, 0xf8ff, kPrivate},   {0xfdd0, 0xfdef, kNoncharacter},
    {0xfe00, 0xfe0f, kIgnorable},  // variation selectors
    {0xfeff, 0xfeff, kFormat},    {0xffa0, 0xffa0, kIgnorable},
    {0xfff0, 0xfff8, kIgnorable}, {0xfff9, 0xfffb, kFormat},
    {0x110bd, 0x110bd, kFormat},  {0x110cd, 0x110cd, kFormat},
    {0x13430, 0x1343f, kFormat},  {0x1bca0, 0x1bca3, kFormat},
    {0x1d173, 0x1d17a, kFormat},  {0xe0000, 0xe0fff, kIgnorable},  // tags and variation selectors
    {0xf0000, 0xffffd, kPrivate}, {0x100000, 0x10fffd, kPrivate}};

// Null for a visible character.
const char* HiddenKind(uint32_t code) {
  if ((code & 0xfffe) == 0xfffe) return kNoncharacter;
  const Hidden* const found = std::lower_bound(std::begin(kHidden), std::end(kHidden), code,
                                               [](const Hidden& range, uint32_t c) { return range.last < c; });
  return found != std::end(kHidden) && found->first <= code ? found->kind : nullptr;
}

}  // namespace

std::string FirstUnprintable(absl::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Character character = FirstCharacter(text.substr(at));
    if (character.length == 0) return absl::StrCat("what is not UTF-8 at byte ", at);
    if (const char* kind = HiddenKind(character.code)) {
      const absl::Hex code(character.code, character.code > 0xffff ? absl::kZeroPad5 : absl::kZeroPad4);
      return absl::StrCat("U+", absl::AsciiStrToUpper(absl::StrCat(code)), ", ", kind, ", at byte ", at);
    }
    at += character.length;
  }
  return "";
}

std::string Quoted(absl::string_view name) {
  constexpr size_t kMaxBytes = 80;
  if (name.size() > kMaxBytes) {
    return absl::StrCat("\"", absl::CHexEscape(name.substr(0, kMaxBytes)), "...\" (", name.size(), " bytes)");
  }
  return absl::StrCat("\"", FirstUnprintable(name).empty() ? absl::Utf8SafeCHexEscape(name) : absl::CHexEscape(name),
                      "\"");
}

}  // namespace reprise::internal
