#include "graph/cuda/cuda_rank.h"

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {

absl::StatusOr<std::shared_ptr<CudaRank>> CudaRank::Create(int device, bool one_host, const CudaWorldOptions& options,
                                                           std::shared_ptr<Bootstrap> bootstrap) {
  const CallerState caller(device);
  REPRISE_RETURN_IF_ERROR(kernels::CudaStatus(cudaFree(nullptr), absl::StrCat("opening device ", device)));
  REPRISE_ASSIGN_OR_RETURN(const DriverApi driver, LoadDriverApi());
  std::shared_ptr<CudaRank> rank(new CudaRank({.device = device,
                                               .one_host = one_host,
                                               .deadline = options.deadline,
                                               .bootstrap = std::move(bootstrap),
                                               .driver = driver}));
  REPRISE_ASSIGN_OR_RETURN(rank->account_, MemoryAccount::Create(device, options.share_device));
  REPRISE_ASSIGN_OR_RETURN(rank->lanes_, Lanes::Create(options.stream));
  const cudaStream_t launch_stream = rank->lanes_->launch_stream();
  rank->communicators_ = std::make_unique<Communicators>(rank->place_, launch_stream);
  REPRISE_ASSIGN_OR_RETURN(rank->queue_, LaunchQueue::Create(rank->place_, launch_stream, *rank->communicators_));
  return rank;
}

CudaRank::~CudaRank() {
  const CallerState caller(device());
  // Communicators end first, while what they use is there. Where the device or NCCL did not come to an end after a
  // failure, all that they may still use is left to them.
  if (queue_ != nullptr) {
    const bool closed = communicators_->Close(queue_->failed(), queue_->lost());
    profile_ = nullptr;
    if (!closed || queue_->lost()) {
      queue_->Abandon();
      communicators_->Abandon();
      lanes_->Abandon();
    }
  }
  queue_ = nullptr;
  communicators_ = nullptr;
  lanes_ = nullptr;
}

absl::Status CudaRank::StartProfile(const Fingerprint& plan) {
  REPRISE_RETURN_IF_ERROR(queue_->Wait());
  const CallerState caller(device());
  REPRISE_ASSIGN_OR_RETURN(profile_, StartDeviceProfile(rank()));
  profiled_plan_ = plan;
  return absl::OkStatus();
}

absl::StatusOr<Timeline> CudaRank::StopProfile(int64_t& origin_ns) {
  const absl::Status waited = queue_->Wait();
  const CallerState caller(device());
  const std::unique_ptr<DeviceProfile> profile = std::move(profile_);
  REPRISE_RETURN_IF_ERROR(waited);
  return profile->Stop(origin_ns);
}

}  // namespace reprise::internal
