// How a session runs its plan, and what its recordings became.
#ifndef REPRISE_GRAPH_EXECUTION_H_
#define REPRISE_GRAPH_EXECUTION_H_

#include <cstdint>

namespace reprise {

// kGraph: compute functions run while recording only, and a replay repeats what they enqueued. kEager: every replay
// walks the commands and runs them again.
enum class Execution : uint8_t { kGraph, kEager };

// What a recording on a device became: the nodes and edges of its graph. All zero for other recordings.
struct GraphAudit {
  int64_t kernels = 0, copies = 0, fills = 0, empty = 0;  // nodes
  int64_t events = 0;  // nodes that NCCL adds to order its graphs with other work unless NCCL_GRAPH_MIXING_SUPPORT=0
  int64_t others = 0;  // nodes: batched memory operations of copy-engine collectives, host functions of a network
  int64_t edges = 0;
  int64_t replaced_edges = 0;  // programmatic edges into collectives, which are ordinary ones now
  // Pairs of nodes that the graph orders although the schedule leaves their commands concurrent.
  int64_t added_orders = 0;
  // Thread blocks of the largest collective of each lane, together. Those that the schedule leaves concurrent wait for
  // each other across devices, so that they must fit the device at once; otherwise recording is ResourceExhausted.
  int64_t communication_ctas = 0;

  int64_t nodes() const { return kernels + copies + fills + empty + events + others; }
  friend bool operator==(const GraphAudit&, const GraphAudit&) = default;
};

}  // namespace reprise

#endif  // REPRISE_GRAPH_EXECUTION_H_
