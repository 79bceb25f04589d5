#include "graph/rank_list.h"

#include <algorithm>
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
  const auto other =
      std::find_if(by_rank.begin(), by_rank.end(), [&](const std::string& text) { return text != by_rank.front(); });
  if (other == by_rank.end()) return "";
  const auto with = [&](const std::string& text) {
    std::vector<int> ranks;
    for (size_t rank = 0; rank < by_rank.size(); ++rank) {
      if (by_rank[rank] == text) ranks.push_back(static_cast<int>(rank));
    }
    return absl::StrCat(text, " on ", RankList(ranks));
  };
  return absl::StrCat(what, " ", with(by_rank.front()), " but ", with(*other));
}

}  // namespace reprise::internal
