#include "graph/rank_list.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace reprise::internal {

std::string RankList(absl::Span<const int> ranks) {
  constexpr size_t kNamed = 8;
  std::string text =
      absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks.subspan(0, kNamed), ", "));
  if (ranks.size() > kNamed) absl::StrAppend(&text, " and ", ranks.size() - kNamed, " more");
  return text;
}

std::string Difference(absl::string_view what, absl::Span<const std::string> by_rank) {
  std::vector<std::pair<absl::string_view, std::vector<int>>> sides;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    auto side = std::find_if(sides.begin(), sides.end(), [&](const auto& s) { return s.first == by_rank[rank]; });
    if (side == sides.end()) side = sides.insert(sides.end(), {by_rank[rank], {}});
    side->second.push_back(static_cast<int>(rank));
  }
  if (sides.size() < 2) return "";
  constexpr size_t kNamed = 4;
  std::string text(what);
  for (size_t s = 0; s < std::min(kNamed, sides.size()); ++s) {
    const absl::string_view between = s == 0 ? " " : s == 1 ? " but " : ", ";
    absl::StrAppend(&text, between, sides[s].first, " on ", RankList(sides[s].second));
  }
  if (sides.size() > kNamed) absl::StrAppend(&text, " and ", sides.size() - kNamed, " other ones");
  return text;
}

}  // namespace reprise::internal
