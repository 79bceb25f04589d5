#include "examples/train_lm/printable.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/model/quoted.h"

namespace reprise::examples {
namespace {

constexpr size_t kMaxCharacterBytes = 4;  // of UTF-8

// The bytes of the visible character, line break or tab at the start of a text; 0 if there is something else.
size_t PrintableBytes(absl::string_view text) {
  if (text[0] == '\n' || text[0] == '\t') return 1;
  for (size_t bytes = 1; bytes <= std::min(text.size(), kMaxCharacterBytes); ++bytes) {
    if (internal::FirstUnprintable(text.substr(0, bytes)).empty()) return bytes;
  }
  return 0;
}

}  // namespace

std::string Printable(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t bytes = PrintableBytes(text);
    absl::StrAppend(&out, bytes > 0 ? std::string(text.substr(0, bytes)) : absl::CHexEscape(text.substr(0, 1)));
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return out;
}

}  // namespace reprise::examples
