#include "graph/cuda/cuda_transport.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/cuda/cuda_memory.h"
#include "graph/cuda/nccl_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// Symmetric kernels of earlier versions corrupt data of some sizes, and addresses of other ranks are new in 2.28.
constexpr int kFirstVersion = 22807;

absl::Status CheckAvailable(const CudaRank& rank, Transport transport) {
  const auto refuse = [&](const auto&... why) {
    return absl::UnavailableError(
        absl::StrCat("the transport ", Name(transport), " needs ", why..., "; plan with Transport::kDefault or kAuto"));
  };
  int version = 0;
  REPRISE_RETURN_IF_ERROR(NcclStatus(ncclGetVersion(&version), "asking for NCCL's version"));
  if (version < kFirstVersion) {
    return refuse("NCCL ", NcclVersionName(kFirstVersion), ", but this is ", NcclVersionName(version));
  }
  if (!rank.one_host()) return refuse("all ranks on one host");
  return absl::OkStatus();
}

}  // namespace

absl::Status MakeCommunicators(World& world, CudaRank& rank) {
  for (const Lane lane : CudaRank::kCommunicatingLanes) {
    ncclUniqueId id = {};
    absl::Status status;
    if (rank.rank() == 0) status = NcclStatus(ncclGetUniqueId(&id), "making an id for a communicator");
    REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> ids,
                             world.ExchangeBytes({std::string(id.internal, status.ok() ? sizeof(id.internal) : 0)}));
    if (ids[0].size() == sizeof(id.internal)) {
      ids[0].copy(id.internal, sizeof(id.internal));
      status = rank.NewCommunicator(lane, id);
    }
    REPRISE_RETURN_IF_ERROR(world.Agree(absl::StrCat("making the communicator of lane ", Name(lane)), status, {}));
  }
  return absl::OkStatus();
}

absl::Status SplitCommunicators(World& world, CudaRank& rank, ncclComm_t parent) {
  for (const Lane lane : CudaRank::kCommunicatingLanes) {
    const absl::Status status = rank.SplitCommunicator(lane, parent);
    REPRISE_RETURN_IF_ERROR(world.Agree(absl::StrCat("making the communicator of lane ", Name(lane)), status, {}));
  }
  return absl::OkStatus();
}

absl::Status PrepareTransport(World& world, const std::shared_ptr<CudaRank>& rank, const Bindings& bindings) {
  const Transport transport = bindings.plan->options.transport;
  // A rank alone copies.
  if (transport == Transport::kDefault || rank->size() == 1) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(world.Agree(absl::StrCat("preparing the transport ", Name(transport)),
                                      CheckAvailable(*rank, transport), bindings.plan->fingerprint));
  const auto agree = [&](absl::string_view phase, const absl::Status& status) {
    return world.Agree(absl::StrCat(phase, " the transport ", Name(transport)), status, {});
  };
  const auto for_each_block = [&](const auto& body) {
    absl::Status status;
    for (const std::shared_ptr<MemoryBlock>& block : bindings.memory) {
      if (status.ok()) status = body(block);
    }
    return status;
  };
  REPRISE_RETURN_IF_ERROR(rank->Wait());
  if (transport == Transport::kSymmetric) {
    rank->AllowEndlessWaits();
    return agree("registering memory for", for_each_block([&](const std::shared_ptr<MemoryBlock>& block) {
                   absl::Status status;
                   for (const Lane lane : CudaRank::kCommunicatingLanes) {
                     if (status.ok()) status = RegisterWindow(block, rank->communicator(lane));
                   }
                   return status;
                 }));
  }
  // Votes around what needs every rank.
  REPRISE_RETURN_IF_ERROR(agree("taking memory for", rank->TakePeerFlags()));
  absl::Status windows = rank->OpenPeerFlags();
  if (windows.ok()) {
    windows = for_each_block([&](const std::shared_ptr<MemoryBlock>& block) {
      return RegisterWindow(block, rank->communicator(Lane::kAllGather));
    });
  }
  REPRISE_RETURN_IF_ERROR(agree("registering memory for", windows));
  absl::Status addresses = rank->FindPeerFlags();
  if (addresses.ok()) {
    addresses = for_each_block([](const std::shared_ptr<MemoryBlock>& block) { return FindPeers(*block); });
  }
  return agree("finding the other ranks' memory for", addresses);
}

}  // namespace reprise::internal
