#include "graph/cuda/graph_order.h"

#include <algorithm>
#include <bitset>
#include <tuple>
#include <utility>

#include "core/plan/happens_before.h"

namespace reprise::internal {
namespace {

// Columns of the matrix of ancestors that are computed at once, so that its memory grows with the nodes alone.
constexpr int kBlock = 4096;
using Row = std::bitset<kBlock>;

// Bits [begin, end) of a block that starts at column `first`.
void SetRange(int begin, int end, int first, Row& row) {
  begin = std::max(begin - first, 0);
  end = std::min(end - first, kBlock);
  if (begin < end) row |= (~Row() >> (kBlock - (end - begin))) << begin;
}

std::vector<int> TopologicalOrder(size_t num_nodes, const std::vector<std::vector<int>>& before) {
  std::vector<int> waits_for(num_nodes), order;
  std::vector<std::vector<int>> after(num_nodes);
  for (size_t n = 0; n < num_nodes; ++n) {
    waits_for[n] = static_cast<int>(before[n].size());
    if (waits_for[n] == 0) order.push_back(static_cast<int>(n));
    for (const int b : before[n]) after[b].push_back(static_cast<int>(n));
  }
  for (size_t next = 0; next < order.size(); ++next) {
    for (const int n : after[order[next]]) {
      if (--waits_for[n] == 0) order.push_back(n);
    }
  }
  return order;
}

// The working nodes as columns: by lane, then command. What completes before a command is then, in each lane, a prefix.
class Columns {
 public:
  Columns(const Schedule& schedule, const std::vector<CommandId>& work) {
    for (size_t n = 0; n < work.size(); ++n) {
      if (work[n].valid()) nodes_.push_back(static_cast<int>(n));
    }
    const auto lane = [&](int n) { return static_cast<int>(schedule.commands[work[n].value()].lane); };
    std::sort(nodes_.begin(), nodes_.end(), [&](int a, int b) {
      return std::make_tuple(lane(a), work[a], a) < std::make_tuple(lane(b), work[b], b);
    });
    for (const int n : nodes_) {
      commands_.push_back(work[n]);
      lanes_.push_back(lane(n));
    }
  }

  int size() const { return static_cast<int>(nodes_.size()); }
  int node(int column) const { return nodes_[column]; }
  CommandId command(int column) const { return commands_[column]; }
  // The columns of a lane's commands from `first` up to and with `last`.
  std::pair<int, int> Range(int lane, int32_t first, int32_t last) const {
    const auto position = [&](int32_t command) {
      const std::pair<int, int32_t> key = {lane, command};
      int low = 0, high = size();
      while (low < high) {
        const int middle = (low + high) / 2;
        (std::pair<int, int32_t>(lanes_[middle], commands_[middle].value()) < key) ? low = middle + 1 : high = middle;
      }
      return low;
    };
    return {position(first), position(last + 1)};
  }

 private:
  std::vector<int> nodes_, lanes_;
  std::vector<CommandId> commands_;
};

}  // namespace

OrderDifference CompareOrder(const Schedule& schedule, const std::vector<CommandId>& work,
                             const std::vector<GraphEdge>& edges) {
  HappensBefore planned;
  for (const ScheduledCommand& command : schedule.commands) planned.Add(command.lane, command.waits);
  std::vector<std::vector<int>> before(work.size());
  for (const GraphEdge& edge : edges) before[edge.to].push_back(edge.from);
  const std::vector<int> order = TopologicalOrder(work.size(), before);
  const Columns columns(schedule, work);
  std::vector<int> column_of(work.size(), -1);
  for (int c = 0; c < columns.size(); ++c) column_of[columns.node(c)] = c;

  OrderDifference difference;
  std::vector<Row> ancestors(work.size());
  for (int first = 0; first < columns.size(); first += kBlock) {
    for (const int n : order) {
      ancestors[n].reset();
      for (const int b : before[n]) {
        ancestors[n] |= ancestors[b];
        if (column_of[b] >= first && column_of[b] < first + kBlock) ancestors[n].set(column_of[b] - first);
      }
      if (!work[n].valid()) continue;
      Row expected, own;
      for (int lane = 0; lane < kNumLanes; ++lane) {
        const auto [begin, end] = columns.Range(lane, 0, planned.Start(work[n])[lane]);
        SetRange(begin, end, first, expected);
      }
      const auto [begin, end] =
          columns.Range(static_cast<int>(schedule.commands[work[n].value()].lane), work[n].value(), work[n].value());
      SetRange(begin, end, first, own);
      const Row lost = expected & ~ancestors[n], added = ancestors[n] & ~expected & ~own;
      if (lost.any() && difference.lost == 0) {
        difference.lost_first = columns.command(first + static_cast<int>(lost._Find_first()));
        difference.lost_second = work[n];
      }
      if (added.any() && difference.added == 0) {
        difference.added_first = columns.command(first + static_cast<int>(added._Find_first()));
        difference.added_second = work[n];
      }
      difference.lost += static_cast<int64_t>(lost.count());
      difference.added += static_cast<int64_t>(added.count());
    }
  }
  return difference;
}

}  // namespace reprise::internal
