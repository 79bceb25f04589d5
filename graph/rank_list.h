// Ranks inside messages.
#ifndef REPRISE_GRAPH_RANK_LIST_H_
#define REPRISE_GRAPH_RANK_LIST_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace reprise::internal {

// "rank 2", "ranks 1, 3, 4 and 12 more".
std::string RankList(absl::Span<const int> ranks);

// "WHAT A on ranks 0, 2 but B on rank 1, C on rank 3", of the first four values; empty if all are equal.
std::string Difference(absl::string_view what, absl::Span<const std::string> by_rank);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_RANK_LIST_H_
