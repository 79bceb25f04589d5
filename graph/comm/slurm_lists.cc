#include "graph/comm/slurm_lists.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace reprise::internal {
namespace {

bool IsHostText(absl::string_view text) {
  for (const char c : text) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.' && c != '_' && c != ':') {
      return false;
    }
  }
  return true;
}

}  // namespace

std::optional<std::string> FirstSlurmHost(absl::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      const size_t end = std::min(list.find_first_of("[,"), list.size());
      if (!IsHostText(list.substr(0, end))) return std::nullopt;
      host.append(list.data(), end);
      list.remove_prefix(end);
      continue;
    }
    const size_t close = list.find(']');
    if (close == absl::string_view::npos) return std::nullopt;
    const absl::string_view ranges = list.substr(1, close - 1);
    const absl::string_view first = ranges.substr(0, ranges.find_first_of(",-"));
    if (first.empty() || !IsHostText(first)) return std::nullopt;
    host.append(first.data(), first.size());
    list.remove_prefix(close + 1);
  }
  if (host.empty()) return std::nullopt;
  return host;
}

std::optional<int> SlurmCount(absl::string_view list, int index) {
  for (absl::string_view part : absl::StrSplit(list, ',')) {
    int repeats = 1;
    const size_t open = part.find("(x");
    if (open != absl::string_view::npos) {
      absl::string_view text = part.substr(open + 2);
      if (!absl::ConsumeSuffix(&text, ")") || !absl::SimpleAtoi(text, &repeats) || repeats < 1) return std::nullopt;
      part = part.substr(0, open);
    }
    int count = 0;
    if (!absl::SimpleAtoi(part, &count) || count < 1) return std::nullopt;
    if (index < repeats) return count;
    index -= repeats;
  }
  return std::nullopt;
}

}  // namespace reprise::internal
