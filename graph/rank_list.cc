#include "graph/rank_list.h"

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

}  // namespace reprise::internal
