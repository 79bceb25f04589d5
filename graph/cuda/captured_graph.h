// A graph while and after it is captured: which command made which node, and whether its nodes and edges are allowed.
#ifndef REPRISE_GRAPH_CUDA_CAPTURED_GRAPH_H_
#define REPRISE_GRAPH_CUDA_CAPTURED_GRAPH_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/cuda/driver_api.h"
#include "reprise/core/ids.h"
#include "reprise/core/schedule.h"
#include "reprise/graph/execution.h"

namespace reprise::internal {

// The command that made each node.
using NodeCommands = std::unordered_map<CUgraphNode, CommandId>;

class CapturedGraph {
 public:
  explicit CapturedGraph(const DriverApi& driver) : driver_(driver) {}

  // After command `id` was enqueued on the capturing stream `lane`: its nodes are those that are new.
  // FailedPrecondition if the capture was invalidated; and, for the command of a compute function, if it left work that
  // its stream does not wait for, or allocated memory or called the host.
  absl::Status AddCommand(CommandId id, cudaStream_t lane, bool is_compute);

  // After the capture. Replaces programmatic edges into nodes of the commands for which `is_collective` holds: NCCL
  // 2.28.3 to 2.30.4 launches its symmetric kernels so that they may start before what they read is written.
  absl::Status ReplaceProgrammaticEdges(cudaGraph_t graph, const std::vector<bool>& is_collective);
  // Counts nodes and edges. Internal if the graph, of `schedule`, lacks an order that the schedule has.
  absl::StatusOr<GraphAudit> Audit(cudaGraph_t graph, const Schedule& schedule) const;

  const NodeCommands& commands() const { return commands_; }

 private:
  struct Edges {
    std::vector<CUgraphNode> from, to;
    std::vector<CUgraphEdgeData> data;
  };

  absl::StatusOr<std::vector<CUgraphNode>> Nodes(cudaGraph_t graph) const;
  absl::StatusOr<Edges> AllEdges(cudaGraph_t graph) const;
  // New nodes that lead to `tails`, which are looked through.
  absl::StatusOr<std::vector<CUgraphNode>> NewAncestors(std::vector<CUgraphNode> tails) const;
  absl::Status CheckKinds(const std::vector<CUgraphNode>& nodes) const;
  // Adds a node to the audit. True if it does more than order others.
  static bool Count(CUgraphNodeType type, GraphAudit& audit);
  absl::StatusOr<int64_t> Ctas(CUgraphNode kernel) const;

  const DriverApi& driver_;
  NodeCommands commands_;
  int64_t replaced_edges_ = 0;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_CAPTURED_GRAPH_H_
