#include "graph/cuda/cuda_rank.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "graph/cuda/nccl_status.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

using kernels::CudaStatus;

// Matrix products run on the compute lane alone; what else needs working memory are reductions of a few rows.
int64_t WorkspaceBytes(Lane lane) {
  return lane == Lane::kCompute ? kernels::kCudaWorkspaceBytes : kernels::kMinCudaWorkspaceBytes;
}

constexpr auto kSpin = absl::Microseconds(200);         // before a wait gives up its core
constexpr auto kLookAtPeers = absl::Milliseconds(100);  // how often a wait asks whether the others are there
// What a rank that failed or ended had launched before may still let this device finish.
constexpr auto kPeersGrace = absl::Seconds(2);

}  // namespace

absl::StatusOr<std::shared_ptr<CudaRank>> CudaRank::Create(int device, const CudaWorldOptions& options,
                                                           std::shared_ptr<Bootstrap> bootstrap) {
  std::shared_ptr<CudaRank> rank(new CudaRank(device, options.deadline, std::move(bootstrap)));
  const CallerState caller(device);
  REPRISE_RETURN_IF_ERROR(rank->Open(options));
  return rank;
}

absl::Status CudaRank::Open(const CudaWorldOptions& options) {
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaFree(nullptr), absl::StrCat("opening device ", device_)));
  REPRISE_ASSIGN_OR_RETURN(driver_, LoadDriverApi());
  REPRISE_ASSIGN_OR_RETURN(free_at_start_, FreeBytes());
  launch_stream_ = options.stream;
  if (launch_stream_ == nullptr) {
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(own_stream_.receive(), cudaStreamNonBlocking),
                                       "creating the launch stream"));
    launch_stream_ = own_stream_.get();
  }
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(waited_for_.receive(), cudaEventDisableTiming), "creating an event"));
  int least = 0, greatest = 0;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities"));
  for (int l = 0; l < kNumLanes; ++l) {
    const Lane lane = static_cast<Lane>(l);
    REPRISE_RETURN_IF_ERROR(OpenLane(lane, lane == Lane::kCompute ? least : greatest));
  }
  return CudaStatus(cudaMalloc(&norm_sums_, 2 * (1 + size()) * sizeof(double)), "taking working memory");
}

absl::Status CudaRank::OpenLane(Lane lane, int priority) {
  LaneParts& parts = lanes_[static_cast<int>(lane)];
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithPriority(parts.stream.receive(), cudaStreamDefault, priority),
                                     absl::StrCat("creating the stream of lane ", Name(lane))));
  const int64_t num_bytes = WorkspaceBytes(lane);
  void* workspace = nullptr;
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaMalloc(&workspace, num_bytes), absl::StrCat("taking ", num_bytes, " bytes of working memory")));
  workspaces_.push_back(workspace);
  REPRISE_ASSIGN_OR_RETURN(
      parts.kernels,
      kernels::NewCudaKernels({.stream = parts.stream.get(), .workspace = workspace, .workspace_bytes = num_bytes}));
  return absl::OkStatus();
}

CudaRank::~CudaRank() {
  const CallerState caller(device_);
  for (LaneParts& lane : lanes_) {
    if (lane.communicator == nullptr) continue;
    if (failed_.ok()) {
      ncclCommDestroy(lane.communicator);
    } else {
      ncclCommAbort(lane.communicator);
    }
  }
  for (LaneParts& lane : lanes_) lane = LaneParts();
  for (void* workspace : workspaces_) cudaFree(workspace);
  if (norm_sums_ != nullptr) cudaFree(norm_sums_);
  waited_for_ = EventHandle();
  own_stream_ = StreamHandle();
}

absl::Status CudaRank::NewCommunicator(Lane lane, const ncclUniqueId& id) {
  const CallerState caller(device_);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  const std::string name = absl::StrCat("reprise ", Name(lane));
  config.commName = name.c_str();
  return NcclStatus(ncclCommInitRankConfig(&lanes_[static_cast<int>(lane)].communicator, size(), id, rank(), &config),
                    absl::StrCat("making the communicator of lane ", Name(lane)));
}

absl::Status CudaRank::SplitCommunicator(Lane lane, ncclComm_t parent) {
  const CallerState caller(device_);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  // Shared resources would order the operations of the two communicators.
  config.splitShare = 0;
  return NcclStatus(ncclCommSplit(parent, 0, rank(), &lanes_[static_cast<int>(lane)].communicator, &config),
                    absl::StrCat("splitting the caller's communicator for lane ", Name(lane)), parent);
}

absl::Status CudaRank::CheckUsable() const {
  if (!failed_.ok()) return failed_;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaStreamIsCapturing(launch_stream_, &capture), "looking at the launch stream"));
  if (capture == cudaStreamCaptureStatusNone) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the world's launch stream is being captured by the caller, so that nothing can run on it; end that capture "
      "first");
}

absl::Status CudaRank::Wait() {
  REPRISE_RETURN_IF_ERROR(CheckUsable());
  const CallerState caller(device_);
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(waited_for_.get(), launch_stream_), "recording an event"));
  REPRISE_RETURN_IF_ERROR(WaitFor(waited_for_.get()));
  graph_launched_ = false;
  return absl::OkStatus();
}

absl::Status CudaRank::WaitFor(cudaEvent_t event) {
  const absl::Time start = absl::Now();
  absl::Time look = start + kLookAtPeers, give_up = absl::InfiniteFuture();
  for (;;) {
    const cudaError_t done = cudaEventQuery(event);
    if (done == cudaSuccess) return absl::OkStatus();
    if (done != cudaErrorNotReady) {
      Fail(CudaStatus(done, "waiting for what was launched"));
      return failed_;
    }
    const absl::Time now = absl::Now();
    if (now - start < kSpin) {
      std::this_thread::yield();
      continue;
    }
    absl::SleepFor(absl::Microseconds(20));
    if (now < look) continue;
    look = now + kLookAtPeers;
    const absl::Status peers = CheckPeers(now - start);
    if (peers.ok()) continue;
    give_up = std::min(give_up, now + kPeersGrace);
    if (now < give_up) continue;
    Fail(peers);
    return failed_;
  }
}

absl::Status CudaRank::CheckPeers(absl::Duration waited) const {
  REPRISE_RETURN_IF_ERROR(bootstrap_->CheckPeers());
  for (const LaneParts& lane : lanes_) {
    if (lane.communicator == nullptr) continue;
    ncclResult_t error = ncclSuccess;
    REPRISE_RETURN_IF_ERROR(NcclStatus(ncclCommGetAsyncError(lane.communicator, &error), "asking NCCL for errors"));
    REPRISE_RETURN_IF_ERROR(NcclStatus(error, "a collective", lane.communicator));
  }
  if (waited < deadline_) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("what was launched on rank ", rank(), " has not ended within ", absl::FormatDuration(deadline_),
                   "; look for a rank that does not make the same calls, or raise CudaWorldOptions::deadline"));
}

void CudaRank::Fail(const absl::Status& status) {
  failed_ = status;
  bootstrap_->TellBroken(status);
  // All at once: each returns when its own kernels have left, and those of one lane may wait for those of another.
  std::vector<std::thread> revoking;
  for (const LaneParts& lane : lanes_) {
    if (lane.communicator == nullptr) continue;
    revoking.emplace_back([device = device_, communicator = lane.communicator] {
      const CallerState caller(device);
      ncclCommRevoke(communicator, NCCL_REVOKE_DEFAULT);
    });
  }
  for (std::thread& thread : revoking) thread.join();
}

absl::StatusOr<int64_t> CudaRank::FreeBytes() const {
  size_t free_bytes = 0, total = 0;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free_bytes, &total), "asking for free memory"));
  return static_cast<int64_t>(free_bytes);
}

MemoryUse CudaRank::memory() const {
  const CallerState caller(device_);
  MemoryUse use = use_;
  size_t free_bytes = 0, total = 0;
  if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) return use;
  use.context = static_cast<int64_t>(total) - free_at_start_;
  use.communication = free_at_start_ - static_cast<int64_t>(free_bytes) - use.requested - use.rounding - use.recording;
  return use;
}

}  // namespace reprise::internal
