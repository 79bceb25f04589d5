#include "graph/cuda/launch_queue.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "graph/cuda/caller_state.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

using kernels::CudaStatus;

constexpr auto kSpin = absl::Microseconds(200);  // before a wait gives up its core
// What a rank that failed or ended had launched before may still let this device finish.
constexpr auto kPeersGrace = absl::Seconds(2);

absl::Status NewEvent(EventHandle& event) {
  return CudaStatus(cudaEventCreateWithFlags(event.receive(), cudaEventDisableTiming), "creating an event");
}

}  // namespace

absl::StatusOr<std::unique_ptr<LaunchQueue>> LaunchQueue::Create(const RankPlace& place, cudaStream_t launch_stream,
                                                                 Communicators& communicators) {
  std::unique_ptr<LaunchQueue> queue(new LaunchQueue(place, launch_stream, communicators));
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(queue->staging_stream_.receive(), cudaStreamNonBlocking),
                                     "creating the stream of staged copies"));
  REPRISE_RETURN_IF_ERROR(NewEvent(queue->staged_));
  REPRISE_RETURN_IF_ERROR(NewEvent(queue->waited_for_));
  for (EventHandle& end : queue->ends_) REPRISE_RETURN_IF_ERROR(NewEvent(end));
  return queue;
}

void LaunchQueue::Abandon() {
  for (EventHandle& end : ends_) end.Abandon();
  waited_for_.Abandon();
  staged_.Abandon();
  staging_stream_.Abandon();
}

absl::Status LaunchQueue::CheckUsable() const {
  if (!failed_.ok()) return failed_;
  const CallerState caller(place_.device, CallerState::Keep::kDeviceOnly);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaStreamIsCapturing(launch_stream_, &capture), "looking at the launch stream"));
  if (capture == cudaStreamCaptureStatusNone) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the world's launch stream is being captured by the caller, so that nothing can run on it; end that capture "
      "first");
}

absl::Status LaunchQueue::BeginStaging() {
  REPRISE_RETURN_IF_ERROR(CheckUsable());
  is_staging_ = true;
  // The event of a launch that was waited for may have been recorded anew since, or never.
  const int64_t before_last = launched_ - 2;
  if (before_last < finished_) return absl::OkStatus();
  const CallerState caller(place_.device, CallerState::Keep::kDeviceOnly);
  return CudaStatus(cudaStreamWaitEvent(staging_stream(), ends_[before_last % kMaxOutstanding].get()),
                    "ordering staged copies");
}

absl::Status LaunchQueue::EndStaging() {
  if (!std::exchange(is_staging_, false)) return absl::OkStatus();
  const CallerState caller(place_.device, CallerState::Keep::kDeviceOnly);
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(staged_.get(), staging_stream()), "ordering staged copies"));
  return CudaStatus(cudaStreamWaitEvent(launch_stream_, staged_.get()), "ordering staged copies");
}

absl::Status LaunchQueue::Admit() {
  REPRISE_RETURN_IF_ERROR(CheckUsable());
  REPRISE_RETURN_IF_ERROR(EndStaging());
  if (launched_ - finished_ < kMaxOutstanding) return absl::OkStatus();
  const CallerState caller(place_.device);
  REPRISE_RETURN_IF_ERROR(WaitFor(ends_[finished_ % kMaxOutstanding].get()));
  ++finished_;
  return absl::OkStatus();
}

absl::Status LaunchQueue::Launched(bool is_graph) {
  graph_launched_ = graph_launched_ || is_graph;
  return CudaStatus(cudaEventRecord(ends_[launched_++ % kMaxOutstanding].get(), launch_stream_), "recording an event");
}

absl::Status LaunchQueue::Wait() {
  REPRISE_RETURN_IF_ERROR(CheckUsable());
  const CallerState caller(place_.device);
  for (; finished_ < launched_; ++finished_) {
    REPRISE_RETURN_IF_ERROR(WaitFor(ends_[finished_ % kMaxOutstanding].get()));
  }
  REPRISE_RETURN_IF_ERROR(EndStaging());
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(waited_for_.get(), launch_stream_), "recording an event"));
  REPRISE_RETURN_IF_ERROR(WaitFor(waited_for_.get()));
  graph_launched_ = false;
  return CheckResults();
}

bool LaunchQueue::Drain() {
  if (!failed_.ok()) return !lost_;
  const CallerState caller(place_.device);
  for (; finished_ < launched_; ++finished_) {
    if (!WaitFor(ends_[finished_ % kMaxOutstanding].get()).ok()) return !lost_;
  }
  // Refused while the caller captures the launch stream: nothing was launched on it since.
  Wait().IgnoreError();
  return !lost_;
}

absl::Status LaunchQueue::WaitFor(cudaEvent_t event) {
  const absl::Time start = absl::Now();
  absl::Time look = start + Communicators::kLookAtPeers, give_up = absl::InfiniteFuture();
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
    look = now + Communicators::kLookAtPeers;
    const absl::Status peers = communicators_.CheckPeers(now - start, graph_launched_);
    if (peers.ok()) continue;
    give_up = std::min(give_up, now + kPeersGrace);
    if (now < give_up) continue;
    Fail(peers);
    return failed_;
  }
}

absl::Status LaunchQueue::CheckResults() {
  REPRISE_RETURN_IF_ERROR(failed_);
  if (place_.size() == 1) return absl::OkStatus();
  if (gave_up_word_ != nullptr) {
    if (gave_up_word_->value() == 0) return absl::OkStatus();
  } else {
    place_.bootstrap->CheckPeers().IgnoreError();  // a rank that is done and has gone is no error here
    if (place_.bootstrap->broken().ok()) return absl::OkStatus();
  }
  // In that rank's words, if they come.
  absl::Status why = place_.bootstrap->CheckPeers();
  for (const absl::Time give_up = absl::Now() + kPeersGrace; why.ok() && absl::Now() < give_up;) {
    absl::SleepFor(absl::Milliseconds(1));
    why = place_.bootstrap->CheckPeers();
  }
  if (why.ok()) {
    why = absl::FailedPreconditionError(
        absl::StrCat("rank ", gave_up_word_->value() - 1, " of ", place_.size(),
                     " failed: it gave up waiting for other ranks, so that what this one computed since means nothing; "
                     "look at its output for the cause"));
  }
  Fail(why);
  return failed_;
}

void LaunchQueue::Fail(const absl::Status& status) {
  failed_ = status;
  place_.bootstrap->TellBroken(status);
  // An abort would wait for what cannot end, and hold locks of the driver meanwhile.
  lost_ = communicators_.endless_waits() && !Ends(absl::ZeroDuration());
  if (lost_) {
    communicators_.Forget();
    return;
  }
  // What is made to go on sends the other ranks bytes that mean nothing, and tells them that they are there: an aborted
  // collective of NCCL's too. They must know before that.
  if (gave_up_word_ != nullptr) gave_up_word_->Set(static_cast<uint32_t>(place_.rank() + 1));
  communicators_.Abort(Lane::kReduceScatter);
  // Copies to the other ranks go through windows of this lane's communicator, which an abort takes away: not while they
  // are queued.
  if (!communicators_.copies_to_peers()) communicators_.Abort(Lane::kAllGather);
  lost_ = !Ends(Communicators::kAbortTime);
  if (!lost_) communicators_.Abort(Lane::kAllGather);
  communicators_.Forget();
}

bool LaunchQueue::Ends(absl::Duration within) {
  const cudaEvent_t last = launched_ > 0 ? ends_[(launched_ - 1) % kMaxOutstanding].get() : waited_for_.get();
  const absl::Time give_up = absl::Now() + within;
  while (cudaEventQuery(last) == cudaErrorNotReady) {
    if (absl::Now() >= give_up) return false;
    if (!communicators_.copies_to_peers()) {
      absl::SleepFor(absl::Milliseconds(1));
    } else {
      communicators_.SetPeerFlags();
    }
  }
  return true;
}

}  // namespace reprise::internal
