#include "graph/cuda/cuda_transport.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/cuda/cuda_memory.h"
#include "graph/cuda/nccl_status.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

using kernels::CudaStatus;

// Symmetric kernels of earlier versions corrupt data of some sizes, and copy-engine collectives are new in 2.28.
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

// Two of each collective, eagerly: the first one sets up what a capture may not, and after exactly one the flags of
// copy-engine collectives would let the first replay run ahead of the other ranks.
class WarmUp {
 public:
  explicit WarmUp(std::shared_ptr<CudaRank> rank) : rank_(std::move(rank)) {}
  WarmUp(const WarmUp&) = delete;
  WarmUp& operator=(const WarmUp&) = delete;
  ~WarmUp() {
    for (const auto& [communicator, window] : windows_) ncclCommWindowDeregister(communicator, window);
    if (memory_ != nullptr) ncclMemFree(memory_);
  }

  absl::Status Run() {
    const size_t part = 4096, whole = part * static_cast<size_t>(rank_->size());
    REPRISE_RETURN_IF_ERROR(NcclStatus(ncclMemAlloc(&memory_, 2 * whole), "taking memory to warm up collectives"));
    std::byte* const to = static_cast<std::byte*>(memory_);
    const std::byte* const from = to + whole;
    for (const Lane lane : CudaRank::kCommunicatingLanes) {
      const ncclComm_t communicator = rank_->communicator(lane, CtaPolicy::kNone);
      const cudaStream_t stream = rank_->lane_stream(lane);
      ncclWindow_t window = nullptr;
      REPRISE_RETURN_IF_ERROR(
          NcclStatus(ncclCommWindowRegister(communicator, memory_, 2 * whole, &window, NCCL_WIN_COLL_SYMMETRIC),
                     "registering memory", communicator));
      windows_.emplace_back(communicator, window);
      for (int i = 0; i < 2; ++i) {
        REPRISE_RETURN_IF_ERROR(NcclStatus(ncclAllGather(from, to, part, ncclUint8, communicator, stream),
                                           "warming up ncclAllGather", communicator));
        REPRISE_RETURN_IF_ERROR(NcclStatus(ncclAlltoAll(from, to, part, ncclUint8, communicator, stream),
                                           "warming up ncclAlltoAll", communicator));
      }
      REPRISE_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream), "warming up collectives"));
    }
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<CudaRank> rank_;
  void* memory_ = nullptr;
  std::vector<std::pair<ncclComm_t, ncclWindow_t>> windows_;
};

absl::Status OpenCopyEngines(World& world, const std::shared_ptr<CudaRank>& rank) {
  REPRISE_RETURN_IF_ERROR(MakeCommunicators(world, *rank, CtaPolicy::kNone));
  const auto warm_up = std::make_shared<WarmUp>(rank);  // the thread may outlive this
  const absl::Status status = rank->WaitForRanks([warm_up] { return warm_up->Run(); });
  return world.Agree("warming up the transport copy_engine", status, {});
}

}  // namespace

absl::Status MakeCommunicators(World& world, CudaRank& rank, CtaPolicy policy) {
  for (const Lane lane : CudaRank::kCommunicatingLanes) {
    ncclUniqueId id = {};
    absl::Status status;
    if (rank.rank() == 0) status = NcclStatus(ncclGetUniqueId(&id), "making an id for a communicator");
    REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> ids,
                             world.ExchangeBytes({std::string(id.internal, status.ok() ? sizeof(id.internal) : 0)}));
    if (ids[0].size() == sizeof(id.internal)) {
      ids[0].copy(id.internal, sizeof(id.internal));
      status = rank.NewCommunicator(lane, policy, id);
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
  REPRISE_RETURN_IF_ERROR(rank->Wait());
  rank->AllowEndlessWaits();
  const CtaPolicy policy = CtaPolicyOf(transport);
  if (rank->communicator(Lane::kAllGather, policy) == nullptr) REPRISE_RETURN_IF_ERROR(OpenCopyEngines(world, rank));
  absl::Status status;
  for (const std::shared_ptr<MemoryBlock>& block : bindings.memory) {
    for (const Lane lane : CudaRank::kCommunicatingLanes) {
      if (status.ok()) status = RegisterWindow(block, rank->communicator(lane, policy));
    }
  }
  return world.Agree(absl::StrCat("registering memory for the transport ", Name(transport)), status, {});
}

}  // namespace reprise::internal
