// Which windows a rank has open with NCCL. NCCL 2.28 to 2.30 gives a new window a place among those that are open, on
// each rank alone, and takes it for the place on every rank where it sends to all at once: the ranks must have the same
// ones open, in places that were given in the same order.
#ifndef REPRISE_GRAPH_CUDA_WINDOW_HISTORY_H_
#define REPRISE_GRAPH_CUDA_WINDOW_HISTORY_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "reprise/core/schedule.h"

namespace reprise::internal {

class WindowHistory {
 public:
  // The number of the next window, on the communicator of a lane; from 0, and counted even if NCCL then refuses.
  int64_t Add(Lane lane, int64_t num_bytes);
  void Remove(int64_t number);
  // Equal texts: the next window gets the same place. The order in which others were removed does not matter.
  std::string Text() const;

 private:
  int64_t added_ = 0;
  std::map<int64_t, std::pair<Lane, int64_t>> open_;  // by number
};

// FailedPrecondition, naming both sides, if ranks' texts differ.
absl::Status CheckSameWindows(absl::Span<const std::string> by_rank);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_WINDOW_HISTORY_H_
