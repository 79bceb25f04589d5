// Which rank this is, and on which device.
#ifndef REPRISE_GRAPH_CUDA_RANK_PLACE_H_
#define REPRISE_GRAPH_CUDA_RANK_PLACE_H_

#include <memory>

#include "absl/time/time.h"
#include "graph/comm/bootstrap.h"
#include "graph/cuda/driver_api.h"

namespace reprise::internal {

struct RankPlace {
  int device = 0;
  bool one_host = true;                                // all ranks are on this host
  absl::Duration deadline = absl::InfiniteDuration();  // CudaWorldOptions::deadline
  std::shared_ptr<Bootstrap> bootstrap = {};           // the way to the other ranks
  DriverApi driver = {};

  int rank() const { return bootstrap->rank(); }
  int size() const { return bootstrap->size(); }
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_RANK_PLACE_H_
