// What copy engines carry between devices while kernels are measured: a schedule's products run beside it too.
#ifndef REPRISE_GRAPH_CUDA_PEER_TRAFFIC_H_
#define REPRISE_GRAPH_CUDA_PEER_TRAFFIC_H_

#include <atomic>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/cuda/cuda_rank.h"
#include "graph/machine.h"

namespace reprise::internal {

class PeerTraffic {
 public:
  // (c) From now on every rank's device writes to every other one's memory, in a thread. Null where there is no other
  // rank, or WhyNoWindows did not find that their devices reach each other. Takes 64 MiB of each device.
  static absl::StatusOr<std::unique_ptr<PeerTraffic>> Start(Machine& world, CudaRank& rank);
  // (c) Afterwards no device writes. Required: destroying it before would free memory that others write to.
  absl::Status Stop(Machine& world);
  ~PeerTraffic();

 private:
  PeerTraffic(CudaRank& rank, std::shared_ptr<MemoryBlock> block) : rank_(rank), block_(std::move(block)) {}
  absl::Status Copy();

  CudaRank& rank_;
  const std::shared_ptr<MemoryBlock> block_;  // of which each rank writes its own part, everywhere
  std::atomic<bool> stops_ = false;
  absl::Status copied_;  // once the thread has ended
  std::thread thread_;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_PEER_TRAFFIC_H_
