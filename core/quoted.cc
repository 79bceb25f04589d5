#include "core/quoted.h"

#include <cstdint>

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

// C0 and C1 controls; line and paragraph separators; Unicode's Bidi_Control.
bool IsControl(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code <= 0x9f) || code == 0x61c || code == 0x200e || code == 0x200f ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

bool IsPrintable(absl::string_view text) {
  while (!text.empty()) {
    const Character character = FirstCharacter(text);
    if (character.length == 0 || IsControl(character.code)) return false;
    text.remove_prefix(character.length);
  }
  return true;
}

std::string Quoted(absl::string_view name) {
  constexpr size_t kMaxBytes = 80;
  if (name.size() > kMaxBytes) {
    return absl::StrCat("\"", absl::CHexEscape(name.substr(0, kMaxBytes)), "...\" (", name.size(), " bytes)");
  }
  return absl::StrCat("\"", IsPrintable(name) ? absl::Utf8SafeCHexEscape(name) : absl::CHexEscape(name), "\"");
}

}  // namespace reprise::internal
