// Ranks inside messages.
#ifndef REPRISE_GRAPH_RANK_LIST_H_
#define REPRISE_GRAPH_RANK_LIST_H_

#include <string>

#include "absl/types/span.h"

namespace reprise::internal {

// "rank 2", "ranks 1, 3, 4 and 12 more".
std::string RankList(absl::Span<const int> ranks);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_RANK_LIST_H_
