#include "core/quoted.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace reprise::internal {

std::string Quoted(absl::string_view name) {
  constexpr size_t kMaxBytes = 80;
  if (name.size() <= kMaxBytes) return absl::StrCat("\"", absl::Utf8SafeCHexEscape(name), "\"");
  return absl::StrCat("\"", absl::CHexEscape(name.substr(0, kMaxBytes)), "...\" (", name.size(), " bytes)");
}

}  // namespace reprise::internal
