#include "graph/cuda/cuda_rank.h"

#include <algorithm>
#include <atomic>
#include <iterator>
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
// After a failure collectives leave within milliseconds, and what else was launched ends by itself.
constexpr auto kAbortTime = absl::Seconds(20);

}  // namespace

absl::StatusOr<std::shared_ptr<CudaRank>> CudaRank::Create(int device, bool one_host, const CudaWorldOptions& options,
                                                           std::shared_ptr<Bootstrap> bootstrap) {
  std::shared_ptr<CudaRank> rank(new CudaRank(device, one_host, options.deadline, std::move(bootstrap)));
  const CallerState caller(device);
  REPRISE_RETURN_IF_ERROR(rank->Open(options));
  return rank;
}

absl::Status CudaRank::Open(const CudaWorldOptions& options) {
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaFree(nullptr), absl::StrCat("opening device ", device_)));
  REPRISE_ASSIGN_OR_RETURN(driver_, LoadDriverApi());
  if (options.share_device) {
    REPRISE_ASSIGN_OR_RETURN(process_memory_, ProcessMemory::Create(device_));
  }
  REPRISE_ASSIGN_OR_RETURN(taken_at_start_, TakenBytes());
  launch_stream_ = options.stream;
  if (launch_stream_ == nullptr) {
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(own_stream_.receive(), cudaStreamNonBlocking),
                                       "creating the launch stream"));
    launch_stream_ = own_stream_.get();
  }
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(staging_stream_.receive(), cudaStreamNonBlocking),
                                     "creating the stream of staged copies"));
  for (EventHandle* event : {&waited_for_, &staged_}) {
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(event->receive(), cudaEventDisableTiming), "creating an event"));
  }
  for (EventHandle& end : ends_) {
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(end.receive(), cudaEventDisableTiming), "creating an event"));
  }
  int least = 0, greatest = 0;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities"));
  for (int l = 0; l < kNumLanes; ++l) {
    const Lane lane = static_cast<Lane>(l);
    REPRISE_RETURN_IF_ERROR(OpenLane(lane, lane == Lane::kCompute ? least : greatest));
  }
  return absl::OkStatus();
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
  if (flags_window_.has_value()) CloseWindow(*flags_window_);
  // ncclCommDestroy waits until all ranks of this host call it ("an intra-node collective call", says NCCL's guide),
  // which ranks that gave up do not: all of them know of the same failures.
  const bool all_well = failed_.ok() && bootstrap_->CheckTogether().ok();
  for (const Lane lane : kCommunicatingLanes) End(lane, all_well ? ncclCommDestroy : ncclCommAbort);
  JoinEnding();
  profile_ = nullptr;
  if (lost_) {
    Abandon();
    return;
  }
  for (LaneParts& lane : lanes_) lane = LaneParts();
  for (void* workspace : workspaces_) cudaFree(workspace);
  if (flags_ != nullptr) ncclMemFree(flags_);
  if (peer_addresses_ != nullptr) cudaFree(peer_addresses_);
  flags_stream_ = StreamHandle();
  waited_for_ = EventHandle();
  staged_ = EventHandle();
  staging_stream_ = StreamHandle();
  for (EventHandle& end : ends_) end = EventHandle();
  own_stream_ = StreamHandle();
}

void CudaRank::Abandon() {
  for (LaneParts& lane : lanes_) {
    lane.stream.Abandon();
    static_cast<void>(lane.kernels.release());
  }
  for (EventHandle& end : ends_) end.Abandon();
  waited_for_.Abandon();
  staged_.Abandon();
  staging_stream_.Abandon();
  flags_stream_.Abandon();
  own_stream_.Abandon();
}

absl::Status CudaRank::WaitForRanks(std::function<absl::Status()> call) {
  struct Result {
    std::atomic<bool> done = false;
    absl::Status status;
  };
  const auto result = std::make_shared<Result>();
  std::thread thread([result, device = device_, call = std::move(call)] {
    const CallerState caller(device);
    result->status = call();
    result->done = true;
  });
  const absl::Time start = absl::Now();
  absl::Time look = start + kLookAtPeers;
  while (!result->done) {
    absl::SleepFor(absl::Milliseconds(1));
    const absl::Time now = absl::Now();
    if (now < look) continue;
    look = now + kLookAtPeers;
    absl::Status peers = CheckPeers(now - start);
    if (peers.ok()) continue;
    thread.detach();
    return peers;
  }
  thread.join();
  return result->status;
}

absl::Status CudaRank::MakeCommunicator(Lane lane, std::function<absl::StatusOr<ncclComm_t>()> call) {
  const auto made = std::make_shared<ncclComm_t>(nullptr);
  REPRISE_RETURN_IF_ERROR(WaitForRanks([made, call = std::move(call)]() -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(*made, call());
    return absl::OkStatus();
  }));
  lanes_[static_cast<int>(lane)].communicator = *made;
  return absl::OkStatus();
}

absl::Status CudaRank::NewCommunicator(Lane lane, const ncclUniqueId& id) {
  const std::string name = absl::StrCat("reprise ", Name(lane));
  return MakeCommunicator(lane, [=, size = size(), rank = rank()]() -> absl::StatusOr<ncclComm_t> {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.commName = name.c_str();
    config.blocking = 1;
    ncclComm_t communicator = nullptr;
    REPRISE_RETURN_IF_ERROR(NcclStatus(ncclCommInitRankConfig(&communicator, size, id, rank, &config),
                                       absl::StrCat("making the communicator \"", name, "\"")));
    return communicator;
  });
}

absl::Status CudaRank::SplitCommunicator(Lane lane, ncclComm_t parent) {
  return MakeCommunicator(lane, [=, rank = rank()]() -> absl::StatusOr<ncclComm_t> {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    // Shared resources would order the operations of the two communicators.
    config.splitShare = 0;
    config.blocking = 1;
    ncclComm_t communicator = nullptr;
    const ncclResult_t split = ncclCommSplit(parent, 0, rank, &communicator, &config);
    if (split == ncclInProgress) {
      return absl::InvalidArgumentError(
          "CudaWorldOptions::parent does not block; pass a communicator made with ncclConfig_t::blocking = 1");
    }
    REPRISE_RETURN_IF_ERROR(
        NcclStatus(split, absl::StrCat("splitting the caller's communicator for lane ", Name(lane)), parent));
    return communicator;
  });
}

absl::Status CudaRank::CheckUsable() const {
  if (!failed_.ok()) return failed_;
  const CallerState caller(device_, CallerState::Keep::kDeviceOnly);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaStreamIsCapturing(launch_stream_, &capture), "looking at the launch stream"));
  if (capture == cudaStreamCaptureStatusNone) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the world's launch stream is being captured by the caller, so that nothing can run on it; end that capture "
      "first");
}

absl::Status CudaRank::BeginStaging() {
  REPRISE_RETURN_IF_ERROR(CheckUsable());
  is_staging_ = true;
  // The event of a launch that was waited for may have been recorded anew since, or never.
  const int64_t before_last = launched_ - 2;
  if (before_last < finished_) return absl::OkStatus();
  const CallerState caller(device_, CallerState::Keep::kDeviceOnly);
  return CudaStatus(cudaStreamWaitEvent(staging_stream(), ends_[before_last % kMaxOutstanding].get()),
                    "ordering staged copies");
}

absl::Status CudaRank::EndStaging() {
  if (!std::exchange(is_staging_, false)) return absl::OkStatus();
  const CallerState caller(device_, CallerState::Keep::kDeviceOnly);
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(staged_.get(), staging_stream()), "ordering staged copies"));
  return CudaStatus(cudaStreamWaitEvent(launch_stream_, staged_.get()), "ordering staged copies");
}

absl::Status CudaRank::StartProfile(const Fingerprint& plan) {
  REPRISE_RETURN_IF_ERROR(Wait());
  const CallerState caller(device_);
  REPRISE_ASSIGN_OR_RETURN(profile_, StartDeviceProfile(rank()));
  profiled_plan_ = plan;
  return absl::OkStatus();
}

absl::StatusOr<Timeline> CudaRank::StopProfile(int64_t& origin_ns) {
  const absl::Status waited = Wait();
  const CallerState caller(device_);
  const std::unique_ptr<DeviceProfile> profile = std::move(profile_);
  REPRISE_RETURN_IF_ERROR(waited);
  return profile->Stop(origin_ns);
}

absl::Status CudaRank::Admit() {
  REPRISE_RETURN_IF_ERROR(CheckUsable());
  REPRISE_RETURN_IF_ERROR(EndStaging());
  if (launched_ - finished_ < kMaxOutstanding) return absl::OkStatus();
  const CallerState caller(device_);
  REPRISE_RETURN_IF_ERROR(WaitFor(ends_[finished_ % kMaxOutstanding].get()));
  ++finished_;
  return absl::OkStatus();
}

absl::Status CudaRank::Launched(bool is_graph) {
  graph_launched_ = graph_launched_ || is_graph;
  return CudaStatus(cudaEventRecord(ends_[launched_++ % kMaxOutstanding].get(), launch_stream_), "recording an event");
}

absl::Status CudaRank::Wait() {
  REPRISE_RETURN_IF_ERROR(CheckUsable());
  const CallerState caller(device_);
  for (; finished_ < launched_; ++finished_) {
    REPRISE_RETURN_IF_ERROR(WaitFor(ends_[finished_ % kMaxOutstanding].get()));
  }
  REPRISE_RETURN_IF_ERROR(EndStaging());
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(waited_for_.get(), launch_stream_), "recording an event"));
  REPRISE_RETURN_IF_ERROR(WaitFor(waited_for_.get()));
  graph_launched_ = false;
  return CheckResults();
}

bool CudaRank::Drain() {
  if (!failed_.ok()) return !lost_;
  const CallerState caller(device_);
  for (; finished_ < launched_; ++finished_) {
    if (!WaitFor(ends_[finished_ % kMaxOutstanding].get()).ok()) return !lost_;
  }
  // Refused while the caller captures the launch stream: nothing was launched on it since.
  Wait().IgnoreError();
  return !lost_;
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

absl::Status CudaRank::CheckResults() {
  REPRISE_RETURN_IF_ERROR(failed_);
  if (size() == 1) return absl::OkStatus();
  if (gave_up_word_ != nullptr) {
    if (gave_up_word_->value() == 0) return absl::OkStatus();
  } else {
    bootstrap_->CheckPeers().IgnoreError();  // a rank that is done and has gone is no error here
    if (bootstrap_->broken().ok()) return absl::OkStatus();
  }
  // In that rank's words, if they come.
  absl::Status why = bootstrap_->CheckPeers();
  for (const absl::Time give_up = absl::Now() + kPeersGrace; why.ok() && absl::Now() < give_up;) {
    absl::SleepFor(absl::Milliseconds(1));
    why = bootstrap_->CheckPeers();
  }
  if (why.ok()) {
    why = absl::FailedPreconditionError(
        absl::StrCat("rank ", gave_up_word_->value() - 1, " of ", size(),
                     " failed: it gave up waiting for other ranks, so that what this one computed since means nothing; "
                     "look at its output for the cause"));
  }
  Fail(why);
  return failed_;
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
  int version = 0;
  ncclGetVersion(&version);
  return absl::DeadlineExceededError(
      absl::StrCat("what was launched on rank ", rank(), " has not ended within ", absl::FormatDuration(deadline_),
                   "; look for a rank that does not make the same calls, or raise CudaWorldOptions::deadline",
                   graph_launched_ && !one_host_ ? GraphHangRemedy(version) : ""));
}

void CudaRank::Fail(const absl::Status& status) {
  failed_ = status;
  bootstrap_->TellBroken(status);
  // An abort would wait for what cannot end, and hold locks of the driver meanwhile.
  lost_ = endless_waits_ && !Ends(absl::ZeroDuration());
  if (lost_) {
    for (LaneParts& lane : lanes_) lane.communicator = nullptr;
    return;
  }
  // What is made to go on sends the other ranks bytes that mean nothing, and tells them that they are there: an aborted
  // collective of NCCL's too. They must know before that.
  if (gave_up_word_ != nullptr) gave_up_word_->Set(static_cast<uint32_t>(rank() + 1));
  Abort(Lane::kReduceScatter);
  // Copies to the other ranks go through windows of this lane's communicator, which an abort takes away: not while they
  // are queued.
  if (!copies_to_peers_) Abort(Lane::kAllGather);
  lost_ = !Ends(kAbortTime);
  if (!lost_) Abort(Lane::kAllGather);
  lanes_[static_cast<int>(Lane::kAllGather)].communicator = nullptr;
}

void CudaRank::End(Lane lane, ncclResult_t (*end)(ncclComm_t)) {
  ncclComm_t& communicator = lanes_[static_cast<int>(lane)].communicator;
  if (communicator == nullptr) return;
  // An abort raises its communicator's flag for good, so that the collectives of every graph still queued leave, and
  // returns once no graph holds the communicator: after the last executable is gone.
  const auto done = std::make_shared<std::atomic<bool>>(false);
  ending_.push_back({std::thread([device = device_, end, done, ended = std::exchange(communicator, nullptr)] {
                       const CallerState caller(device);
                       end(ended);
                       *done = true;
                     }),
                     done});
}

void CudaRank::JoinEnding() {
  const absl::Time start = absl::Now();
  absl::Time look = start, give_up = lost_ ? start : absl::InfiniteFuture();
  for (Ending& ending : ending_) {
    while (!*ending.done && absl::Now() < give_up) {
      absl::SleepFor(absl::Milliseconds(1));
      const absl::Time now = absl::Now();
      if (now < look) continue;
      look = now + kLookAtPeers;
      if (!failed_.ok() || !CheckPeers(now - start).ok()) give_up = std::min(give_up, now + kAbortTime);
    }
    lost_ = lost_ || !*ending.done;
    *ending.done ? ending.thread.join() : ending.thread.detach();
  }
  ending_.clear();
}

bool CudaRank::Ends(absl::Duration within) {
  const cudaEvent_t last = launched_ > 0 ? ends_[(launched_ - 1) % kMaxOutstanding].get() : waited_for_.get();
  const absl::Time give_up = absl::Now() + within;
  while (cudaEventQuery(last) == cudaErrorNotReady) {
    if (absl::Now() >= give_up) return false;
    if (!copies_to_peers_) {
      absl::SleepFor(absl::Milliseconds(1));
    } else {
      SetPeerFlags();  // at once for each wait of what is queued
    }
  }
  return true;
}

absl::StatusOr<int64_t> CudaRank::FreeBytes() const {
  size_t free_bytes = 0, total = 0;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free_bytes, &total), "asking for free memory"));
  return static_cast<int64_t>(free_bytes);
}

absl::StatusOr<int64_t> CudaRank::TakenBytes() const {
  if (process_memory_ != nullptr) return process_memory_->Bytes();
  size_t free_bytes = 0, total = 0;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free_bytes, &total), "asking for free memory"));
  return static_cast<int64_t>(total - free_bytes);
}

MemoryUse CudaRank::memory() const {
  const CallerState caller(device_);
  MemoryUse use = use_;
  const absl::StatusOr<int64_t> taken = TakenBytes();
  if (!taken.ok()) return use;
  use.context = taken_at_start_;
  use.communication = *taken - taken_at_start_ - use.requested - use.rounding - use.recording;
  return use;
}

}  // namespace reprise::internal
