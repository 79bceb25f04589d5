// What one rank owns on its device, in the order in which it ends. Shared by the world, its memory and its executables,
// so that they may be destroyed in any order.
#ifndef REPRISE_GRAPH_CUDA_CUDA_RANK_H_
#define REPRISE_GRAPH_CUDA_CUDA_RANK_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/cuda/caller_state.h"
#include "graph/cuda/communicators.h"
#include "graph/cuda/device_profile.h"
#include "graph/cuda/lanes.h"
#include "graph/cuda/launch_queue.h"
#include "graph/cuda/memory_account.h"
#include "graph/cuda/rank_place.h"
#include "reprise/core/plan.h"
#include "reprise/graph/cuda_world.h"

namespace reprise::internal {

class CudaRank : public std::enable_shared_from_this<CudaRank> {
 public:
  // Streams, kernels and working memory on a device; asks nothing of the other ranks.
  // `one_host`: all ranks are on this host.
  static absl::StatusOr<std::shared_ptr<CudaRank>> Create(int device, bool one_host, const CudaWorldOptions& options,
                                                          std::shared_ptr<Bootstrap> bootstrap);
  ~CudaRank();

  int device() const { return place_.device; }
  bool one_host() const { return place_.one_host; }
  int rank() const { return place_.rank(); }
  int size() const { return place_.size(); }
  const DriverApi& driver() const { return place_.driver; }

  Lanes& lanes() const { return *lanes_; }
  Communicators& communicators() const { return *communicators_; }
  LaunchQueue& queue() const { return *queue_; }
  MemoryAccount& account() const { return *account_; }

  // Waits, and times replays of the plan with this fingerprint until StopProfile, which waits too.
  absl::Status StartProfile(const Fingerprint& plan);
  absl::StatusOr<Timeline> StopProfile(int64_t& origin_ns);
  // Null if replays of the plan are not timed.
  DeviceProfile* ProfileOf(const Plan& plan) const {
    return profile_ != nullptr && plan.fingerprint == profiled_plan_ ? profile_.get() : nullptr;
  }

 private:
  explicit CudaRank(RankPlace place) : place_(std::move(place)) {}

  const RankPlace place_;
  // All there are once Create has returned a rank; one that failed on the way has those before the one that failed.
  std::unique_ptr<MemoryAccount> account_;
  std::unique_ptr<Lanes> lanes_;
  std::unique_ptr<Communicators> communicators_;
  std::unique_ptr<LaunchQueue> queue_;
  std::unique_ptr<DeviceProfile> profile_;
  Fingerprint profiled_plan_;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_CUDA_RANK_H_
