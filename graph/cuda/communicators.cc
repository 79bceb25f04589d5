#include "graph/cuda/communicators.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "graph/cuda/caller_state.h"
#include "graph/cuda/nccl_status.h"
#include "graph/cuda/peer_addresses.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {

// ---- making and ending ----

absl::Status Communicators::WaitForRanks(std::function<absl::Status()> call) {
  struct Result {
    std::atomic<bool> done = false;
    absl::Status status;
  };
  const auto result = std::make_shared<Result>();
  std::thread thread([result, device = place_.device, call = std::move(call)] {
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
    absl::Status peers = CheckPeers(now - start, /*graphs=*/false);
    if (peers.ok()) continue;
    thread.detach();
    return peers;
  }
  thread.join();
  return result->status;
}

absl::Status Communicators::Make(Lane lane, std::function<absl::StatusOr<ncclComm_t>()> call) {
  const auto made = std::make_shared<ncclComm_t>(nullptr);
  REPRISE_RETURN_IF_ERROR(WaitForRanks([made, call = std::move(call)]() -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(*made, call());
    return absl::OkStatus();
  }));
  communicators_[static_cast<size_t>(lane)] = *made;
  return absl::OkStatus();
}

absl::Status Communicators::New(Lane lane, const ncclUniqueId& id) {
  const std::string name = absl::StrCat("reprise ", Name(lane));
  return Make(lane, [=, size = place_.size(), rank = place_.rank()]() -> absl::StatusOr<ncclComm_t> {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.commName = name.c_str();
    config.blocking = 1;
    ncclComm_t communicator = nullptr;
    REPRISE_RETURN_IF_ERROR(NcclStatus(ncclCommInitRankConfig(&communicator, size, id, rank, &config),
                                       absl::StrCat("making the communicator \"", name, "\"")));
    return communicator;
  });
}

absl::Status Communicators::Split(Lane lane, ncclComm_t parent) {
  return Make(lane, [=, rank = place_.rank()]() -> absl::StatusOr<ncclComm_t> {
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

void Communicators::End(Lane lane, ncclResult_t (*end)(ncclComm_t)) {
  ncclComm_t& communicator = communicators_[static_cast<size_t>(lane)];
  if (communicator == nullptr) return;
  // An abort raises its communicator's flag for good, so that the collectives of every graph still queued leave, and
  // returns once no graph holds the communicator: after the last executable is gone.
  const auto done = std::make_shared<std::atomic<bool>>(false);
  ending_.push_back({std::thread([device = place_.device, end, done, ended = std::exchange(communicator, nullptr)] {
                       const CallerState caller(device);
                       end(ended);
                       *done = true;
                     }),
                     done});
}

bool Communicators::Close(const absl::Status& failed, bool lost) {
  if (flags_window_.has_value()) CloseWindow(*flags_window_);
  // ncclCommDestroy waits until all ranks of this host call it ("an intra-node collective call", says NCCL's guide),
  // which ranks that gave up do not: all of them know of the same failures.
  const bool all_well = failed.ok() && place_.bootstrap->CheckTogether().ok();
  for (const Lane lane : kCommunicatingLanes) End(lane, all_well ? ncclCommDestroy : ncclCommAbort);
  const absl::Time start = absl::Now();
  absl::Time look = start, give_up = lost ? start : absl::InfiniteFuture();
  bool all_done = true;
  for (Ending& ending : ending_) {
    while (!*ending.done && absl::Now() < give_up) {
      absl::SleepFor(absl::Milliseconds(1));
      const absl::Time now = absl::Now();
      if (now < look) continue;
      look = now + kLookAtPeers;
      if (!failed.ok() || !CheckPeers(now - start, /*graphs=*/false).ok())
        give_up = std::min(give_up, now + kAbortTime);
    }
    const bool done = *ending.done;
    done ? ending.thread.join() : ending.thread.detach();
    all_done = all_done && done;
  }
  ending_.clear();
  return all_done;
}

absl::Status Communicators::CheckPeers(absl::Duration waited, bool graphs) const {
  REPRISE_RETURN_IF_ERROR(place_.bootstrap->CheckPeers());
  for (const ncclComm_t communicator : communicators_) {
    if (communicator == nullptr) continue;
    ncclResult_t error = ncclSuccess;
    REPRISE_RETURN_IF_ERROR(NcclStatus(ncclCommGetAsyncError(communicator, &error), "asking NCCL for errors"));
    REPRISE_RETURN_IF_ERROR(NcclStatus(error, "a collective", communicator));
  }
  if (waited < place_.deadline) return absl::OkStatus();
  int version = 0;
  ncclGetVersion(&version);
  return absl::DeadlineExceededError(absl::StrCat(
      "what was launched on rank ", place_.rank(), " has not ended within ", absl::FormatDuration(place_.deadline),
      "; look for a rank that does not make the same calls, or raise CudaWorldOptions::deadline",
      graphs && !place_.one_host ? GraphHangRemedy(version) : ""));
}

// ---- windows ----

absl::StatusOr<Communicators::Window> Communicators::NewWindow(Lane lane, void* address, int64_t num_bytes,
                                                               std::shared_ptr<const void> owner) {
  const auto handle = std::make_shared<ncclWindow_t>(nullptr);
  Window window = {.lane = lane, .number = windows_.Add(lane, num_bytes)};
  const absl::Status status = WaitForRanks([=, communicator = at(lane), owner = std::move(owner)] {
    return NcclStatus(ncclCommWindowRegister(communicator, address, static_cast<size_t>(num_bytes), handle.get(),
                                             NCCL_WIN_COLL_SYMMETRIC),
                      absl::StrCat("registering ", num_bytes, " bytes with NCCL"), communicator);
  });
  if (!status.ok()) {
    windows_.Remove(window.number);
    return status;
  }
  window.handle = *handle;
  return window;
}

void Communicators::CloseWindow(const Window& window) {
  windows_.Remove(window.number);
  // A communicator that was aborted has given its windows back.
  if (at(window.lane) != nullptr) ncclCommWindowDeregister(at(window.lane), window.handle);
}

absl::StatusOr<std::vector<std::byte*>> Communicators::PeerAddresses(const Window& window) {
  const CallerState caller(place_.device);
  return FindPeerAddresses(at(window.lane), window.handle, place_.size(), stream_);
}

absl::Status Communicators::TakePeerFlags() {
  const CallerState caller(place_.device);
  return flags_.Take(stream_);
}

absl::Status Communicators::OpenPeerFlags(std::shared_ptr<const void> owner) {
  if (flags_window_.has_value()) return absl::OkStatus();
  const CallerState caller(place_.device);
  REPRISE_ASSIGN_OR_RETURN(flags_window_,
                           NewWindow(Lane::kAllGather, flags_.address(), flags_.num_bytes(), std::move(owner)));
  return absl::OkStatus();
}

absl::Status Communicators::FindPeerFlags(absl::Span<const uint32_t> tokens) {
  if (peer_flags(Lane::kAllGather).size() > 0) return absl::OkStatus();
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::byte*> blocks, PeerAddresses(*flags_window_));
  const CallerState caller(place_.device);
  return flags_.Find(blocks, tokens, stream_);
}

}  // namespace reprise::internal
