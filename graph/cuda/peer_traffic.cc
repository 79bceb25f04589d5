#include "graph/cuda/peer_traffic.h"

#include <vector>

#include "graph/cuda/caller_state.h"
#include "graph/cuda/cuda_memory.h"
#include "graph/cuda/cuda_transport.h"
#include "graph/cuda/handles.h"
#include "graph/cuda/peer_copies.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

using kernels::CudaStatus;

constexpr int64_t kBytes = int64_t{64} << 20;
// Enough that the copy engines do not wait for the host, and few enough to stop soon.
constexpr int kCopiesAtOnce = 8;

}  // namespace

absl::StatusOr<std::unique_ptr<PeerTraffic>> PeerTraffic::Start(Machine& world, CudaRank& rank) {
  if (rank.size() == 1 || rank.communicators().why_no_windows() != "") return std::unique_ptr<PeerTraffic>();
  const auto agree = [&](const absl::Status& status) {
    return world.Agree("preparing to choose kernels beside copies", status, {});
  };
  absl::StatusOr<std::shared_ptr<MemoryBlock>> block =
      AllocateCudaMemory(rank.shared_from_this(), MemoryKind::kCommunicating, kBytes);
  REPRISE_RETURN_IF_ERROR(agree(block.status()));
  REPRISE_RETURN_IF_ERROR(CheckWindows(world, rank));
  REPRISE_RETURN_IF_ERROR(agree(RegisterWindow(*block, Lane::kAllGather)));
  REPRISE_RETURN_IF_ERROR(agree(FindPeers(**block)));
  std::unique_ptr<PeerTraffic> traffic(new PeerTraffic(rank, *std::move(block)));
  traffic->thread_ = std::thread([traffic = traffic.get()] { traffic->copied_ = traffic->Copy(); });
  return traffic;
}

absl::Status PeerTraffic::Copy() {
  const CallerState caller(rank_.device());
  StreamHandle stream;
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithFlags(stream.receive(), cudaStreamNonBlocking), "creating a stream of copies"));
  const int64_t part = kBytes / rank_.size();
  std::byte* const mine = block_->address(0) + rank_.rank() * part;
  std::vector<PeerCopy> copies;
  for (int peer = 0; peer < rank_.size(); ++peer) {
    if (peer != rank_.rank()) copies.push_back({PeerAddress(*block_, mine, peer), mine, part});
  }
  while (!stops_) {
    for (int i = 0; i < kCopiesAtOnce; ++i) REPRISE_RETURN_IF_ERROR(internal::Copy(copies, stream.get()));
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream.get()), "copying to other ranks"));
  }
  return absl::OkStatus();
}

absl::Status PeerTraffic::Stop(Machine& world) {
  stops_ = true;
  if (thread_.joinable()) thread_.join();
  return world.Agree("ending copies", copied_, {});
}

PeerTraffic::~PeerTraffic() {
  stops_ = true;
  if (thread_.joinable()) thread_.join();
}

}  // namespace reprise::internal
