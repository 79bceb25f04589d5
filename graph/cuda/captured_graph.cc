#include "graph/cuda/captured_graph.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/cuda/graph_order.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

using kernels::CudaStatus;

absl::Status Invalidated() {
  return absl::FailedPreconditionError(
      "the command broke the capture: it may not allocate, synchronise, query events, or use the legacy stream or a "
      "stream that is not the context's; enqueue work on ComputeContext::stream() alone");
}

const char* ForbiddenKind(CUgraphNodeType type) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return "an allocation; declare scratch or saved tensors instead";
    case CU_GRAPH_NODE_TYPE_HOST:
      return "a host function; do such work outside the replay";
    default:
      return nullptr;
  }
}

}  // namespace

absl::StatusOr<std::vector<CUgraphNode>> CapturedGraph::Nodes(cudaGraph_t graph) const {
  size_t count = 0;
  REPRISE_RETURN_IF_ERROR(DriverStatus(driver_.graph_get_nodes(graph, nullptr, &count), "listing a graph's nodes"));
  std::vector<CUgraphNode> nodes(count);
  if (count == 0) return nodes;
  REPRISE_RETURN_IF_ERROR(
      DriverStatus(driver_.graph_get_nodes(graph, nodes.data(), &count), "listing a graph's nodes"));
  return nodes;
}

absl::StatusOr<CapturedGraph::Edges> CapturedGraph::AllEdges(cudaGraph_t graph) const {
  size_t count = 0;
  REPRISE_RETURN_IF_ERROR(
      DriverStatus(driver_.graph_get_edges(graph, nullptr, nullptr, nullptr, &count), "listing a graph's edges"));
  Edges edges = {std::vector<CUgraphNode>(count), std::vector<CUgraphNode>(count), std::vector<CUgraphEdgeData>(count)};
  if (count == 0) return edges;
  REPRISE_RETURN_IF_ERROR(
      DriverStatus(driver_.graph_get_edges(graph, edges.from.data(), edges.to.data(), edges.data.data(), &count),
                   "listing a graph's edges"));
  return edges;
}

absl::StatusOr<std::vector<CUgraphNode>> CapturedGraph::NewAncestors(std::vector<CUgraphNode> tails) const {
  std::vector<CUgraphNode> found;
  std::unordered_set<CUgraphNode> seen;
  while (!tails.empty()) {
    const CUgraphNode node = tails.back();
    tails.pop_back();
    if (commands_.contains(node) || !seen.insert(node).second) continue;
    found.push_back(node);
    size_t count = 0;
    REPRISE_RETURN_IF_ERROR(DriverStatus(driver_.graph_node_get_dependencies(node, nullptr, nullptr, &count),
                                         "listing a node's dependencies"));
    if (count == 0) continue;
    std::vector<CUgraphNode> before(count);
    std::vector<CUgraphEdgeData> data(count);
    REPRISE_RETURN_IF_ERROR(DriverStatus(driver_.graph_node_get_dependencies(node, before.data(), data.data(), &count),
                                         "listing a node's dependencies"));
    tails.insert(tails.end(), before.begin(), before.end());
  }
  return found;
}

absl::Status CapturedGraph::CheckKinds(const std::vector<CUgraphNode>& nodes) const {
  for (const CUgraphNode node : nodes) {
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    REPRISE_RETURN_IF_ERROR(DriverStatus(driver_.graph_node_get_type(node, &type), "asking for a node's type"));
    if (const char* const what = ForbiddenKind(type); what != nullptr) {
      return absl::FailedPreconditionError(absl::StrCat("the command captured ", what));
    }
  }
  return absl::OkStatus();
}

absl::Status CapturedGraph::AddCommand(CommandId id, cudaStream_t lane, bool is_compute) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* tails = nullptr;
  const cudaGraphEdgeData* data = nullptr;
  size_t num_tails = 0;
  const cudaError_t error = cudaStreamGetCaptureInfo(lane, &status, nullptr, &graph, &tails, &data, &num_tails);
  if (error == cudaErrorStreamCaptureInvalidated || status == cudaStreamCaptureStatusInvalidated) {
    cudaGetLastError();
    return Invalidated();
  }
  REPRISE_RETURN_IF_ERROR(CudaStatus(error, "looking at the capture"));
  if (status == cudaStreamCaptureStatusNone) {
    return absl::InternalError("the lane takes no part in the capture; its first command must wait for begin");
  }
  size_t count = 0;
  REPRISE_RETURN_IF_ERROR(DriverStatus(driver_.graph_get_nodes(graph, nullptr, &count), "listing a graph's nodes"));
  const size_t num_new = count - commands_.size();
  if (num_new == 0) return absl::OkStatus();
  REPRISE_ASSIGN_OR_RETURN(std::vector<CUgraphNode> nodes,
                           NewAncestors(std::vector<CUgraphNode>(tails, tails + num_tails)));
  if (nodes.size() != num_new) {
    if (is_compute) {
      return absl::FailedPreconditionError(
          absl::StrCat(num_new - nodes.size(), " of the ", num_new,
                       " graph nodes that the command captured are on a stream that it forked and did not join; let "
                       "the context's stream wait for it (cudaStreamWaitEvent) before the function returns"));
    }
    // What NCCL adds beside its lane.
    REPRISE_ASSIGN_OR_RETURN(nodes, Nodes(graph));
  }
  if (is_compute) REPRISE_RETURN_IF_ERROR(CheckKinds(nodes));
  for (const CUgraphNode node : nodes) commands_.emplace(node, id);
  return absl::OkStatus();
}

absl::Status CapturedGraph::ReplaceProgrammaticEdges(cudaGraph_t graph, const std::vector<bool>& is_collective) {
  REPRISE_ASSIGN_OR_RETURN(const Edges edges, AllEdges(graph));
  for (size_t e = 0; e < edges.from.size(); ++e) {
    const CUgraphEdgeData& data = edges.data[e];
    const bool programmatic =
        data.type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC || data.from_port == CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
    if (!programmatic || !is_collective[commands_.at(edges.to[e]).value()]) continue;
    const CUgraphEdgeData full = {};
    REPRISE_RETURN_IF_ERROR(
        DriverStatus(driver_.graph_remove_dependencies(graph, &edges.from[e], &edges.to[e], &data, 1),
                     "removing a programmatic edge"));
    REPRISE_RETURN_IF_ERROR(DriverStatus(driver_.graph_add_dependencies(graph, &edges.from[e], &edges.to[e], &full, 1),
                                         "adding an ordinary edge"));
    ++replaced_edges_;
  }
  return absl::OkStatus();
}

bool CapturedGraph::Count(CUgraphNodeType type, GraphAudit& audit) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      ++audit.kernels;
      return true;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      ++audit.copies;
      return true;
    case CU_GRAPH_NODE_TYPE_MEMSET:
      ++audit.fills;
      return true;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      ++audit.others;
      return true;
    case CU_GRAPH_NODE_TYPE_EMPTY:
      ++audit.empty;
      return false;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      ++audit.events;
      return false;
    default:
      ++audit.others;
      return false;
  }
}

absl::StatusOr<int64_t> CapturedGraph::Ctas(CUgraphNode kernel) const {
  CUDA_KERNEL_NODE_PARAMS parameters = {};
  REPRISE_RETURN_IF_ERROR(
      DriverStatus(driver_.graph_kernel_node_get_params(kernel, &parameters), "asking for a kernel's grid"));
  return int64_t{parameters.gridDimX} * parameters.gridDimY * parameters.gridDimZ;
}

absl::StatusOr<GraphAudit> CapturedGraph::Audit(cudaGraph_t graph, const Schedule& schedule) const {
  GraphAudit audit;
  audit.replaced_edges = replaced_edges_;
  REPRISE_ASSIGN_OR_RETURN(const std::vector<CUgraphNode> nodes, Nodes(graph));
  std::unordered_map<CUgraphNode, int> index;
  std::vector<CommandId> work(nodes.size());
  std::array<int64_t, kNumLanes> ctas = {};
  for (size_t n = 0; n < nodes.size(); ++n) {
    index[nodes[n]] = static_cast<int>(n);
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    REPRISE_RETURN_IF_ERROR(DriverStatus(driver_.graph_node_get_type(nodes[n], &type), "asking for a node's type"));
    const CommandId id = commands_.at(nodes[n]);
    if (Count(type, audit)) work[n] = id;
    const ScheduledCommand& command = schedule.commands[id.value()];
    if (type != CU_GRAPH_NODE_TYPE_KERNEL || !IsCollective(command.command)) continue;
    REPRISE_ASSIGN_OR_RETURN(const int64_t of_kernel, Ctas(nodes[n]));
    int64_t& of_lane = ctas[static_cast<int>(command.lane)];
    of_lane = std::max(of_lane, of_kernel);
  }
  audit.communication_ctas = std::accumulate(ctas.begin(), ctas.end(), int64_t{0});
  REPRISE_ASSIGN_OR_RETURN(const Edges edges, AllEdges(graph));
  audit.edges = static_cast<int64_t>(edges.from.size());
  std::vector<GraphEdge> between;
  for (size_t e = 0; e < edges.from.size(); ++e) between.push_back({index.at(edges.from[e]), index.at(edges.to[e])});
  const OrderDifference difference = CompareOrder(schedule, work, between);
  audit.added_orders = difference.added;
  if (difference.lost == 0) return audit;
  return absl::InternalError(absl::StrCat("the captured graph lets ", difference.lost,
                                          " pairs of nodes run in any order that the schedule orders, first of "
                                          "command #",
                                          difference.lost_second.value(), " after #", difference.lost_first.value(),
                                          "; report it, and replay eagerly (RunOptions::execution)"));
}

}  // namespace reprise::internal
