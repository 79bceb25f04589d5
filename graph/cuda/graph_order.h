// Whether a captured graph orders exactly what its schedule orders. Knows no CUDA: nodes are numbers.
#ifndef REPRISE_GRAPH_CUDA_GRAPH_ORDER_H_
#define REPRISE_GRAPH_CUDA_GRAPH_ORDER_H_

#include <cstdint>
#include <vector>

#include "reprise/core/schedule.h"

namespace reprise::internal {

struct GraphEdge {
  int from = 0, to = 0;  // indices of nodes; `to` cannot start before `from` is done
};

// Of pairs of nodes that work for different commands.
struct OrderDifference {
  int64_t lost = 0;   // the schedule orders their commands, but no path of the graph orders them
  int64_t added = 0;  // a path orders them, but the schedule leaves their commands concurrent
  // The commands of the first such pair; invalid if there is none.
  CommandId lost_first, lost_second, added_first, added_second;
};

// `work[n]` is the command that node n works for, or invalid if n does nothing but order others. Edges have no cycle.
// Takes time and memory proportional to nodes x (nodes + edges) / 64.
OrderDifference CompareOrder(const Schedule& schedule, const std::vector<CommandId>& work,
                             const std::vector<GraphEdge>& edges);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_GRAPH_ORDER_H_
