// Slurm's short forms of lists: hosts "node[1-3,7],login" and counts "4(x2),3".
#ifndef REPRISE_GRAPH_COMM_SLURM_LISTS_H_
#define REPRISE_GRAPH_COMM_SLURM_LISTS_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace reprise::internal {

// The first host of a list: "node[01-12,20]-ib,other" gives "node01-ib". Nothing if the list is malformed.
std::optional<std::string> FirstSlurmHost(absl::string_view list);

// The count of the node at `index`: index 2 of "4(x2),3" gives 3. Nothing if the list is malformed or shorter.
std::optional<int> SlurmCount(absl::string_view list, int index);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_SLURM_LISTS_H_
