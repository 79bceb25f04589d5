// What a rank has open to the other ranks' devices: communicators, windows of theirs on memory, and flags of copies.
#ifndef REPRISE_GRAPH_CUDA_COMMUNICATORS_H_
#define REPRISE_GRAPH_CUDA_COMMUNICATORS_H_

#include <nccl.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "graph/cuda/flag_memory.h"
#include "graph/cuda/rank_place.h"
#include "graph/cuda/window_history.h"
#include "reprise/core/schedule.h"

namespace reprise::internal {

inline constexpr Lane kCommunicatingLanes[] = {Lane::kAllGather, Lane::kReduceScatter};

class Communicators {
 public:
  // Of no communicators yet. `place` and `stream` outlive this, which ends after Close, with its device current.
  Communicators(const RankPlace& place, cudaStream_t stream) : place_(place), stream_(stream), flags_(place) {}

  // ---- making and ending ----
  // (c) Once for each communicating lane: from a new id, the same on all ranks, or from the caller's communicator.
  absl::Status New(Lane lane, const ncclUniqueId& id);
  absl::Status Split(Lane lane, ncclComm_t parent);
  // Null if it was not made, or is no more.
  ncclComm_t at(Lane lane) const { return communicators_[static_cast<size_t>(lane)]; }
  // Aborts the lane's collectives.
  void Abort(Lane lane) { End(lane, ncclCommAbort); }
  // Leaves all to NCCL: an abort would wait for what cannot end.
  void Forget() { communicators_ = {}; }
  // At the end: destroys them, or aborts them after a failure, and waits for that as long as it makes sense, not at all
  // if the device is lost. False if NCCL may still use what this rank has.
  bool Close(const absl::Status& failed, bool lost);
  // Leaves all that the device may still use to it.
  void Abandon() { flags_.Abandon(); }

  // One look at whether waiting still makes sense: at the other ranks, at NCCL and at the clock. `graphs`: what is
  // waited for may be a graph.
  absl::Status CheckPeers(absl::Duration waited, bool graphs) const;
  static constexpr absl::Duration kLookAtPeers = absl::Milliseconds(100);  // how often a wait does so
  // After a failure collectives leave within milliseconds, and what else was launched ends by itself.
  static constexpr absl::Duration kAbortTime = absl::Seconds(20);

  // ---- windows ----
  // Why devices cannot use each other's memory, empty if they can: what the ranks found out together. Unset before.
  const std::optional<std::string>& why_no_windows() const { return why_no_windows_; }
  void SetWhyNoWindows(std::string why) { why_no_windows_ = std::move(why); }
  // A window of a lane's communicator, and its number in windows().
  struct Window {
    Lane lane = Lane::kAllGather;
    int64_t number = 0;
    ncclWindow_t handle = nullptr;
  };
  // (c) A window on memory that ncclMemAlloc gave, in which every rank has its own. `owner` is kept while a rank that
  // went away keeps the call waiting. The ranks' windows must be the same: see CheckWindows.
  absl::StatusOr<Window> NewWindow(Lane lane, void* address, int64_t num_bytes, std::shared_ptr<const void> owner);
  // Before that memory is given back. Also while the caller captures the launch stream, and after a failure.
  void CloseWindow(const Window& window);
  const WindowHistory& windows() const { return windows_; }
  // Where this rank's device sees the memory of each rank in it, by rank. Waits for the stream. Unavailable if the
  // devices cannot reach each other's memory.
  absl::StatusOr<std::vector<std::byte*>> PeerAddresses(const Window& window);

  // Flags for copies to the other ranks' memory, for each communicating lane: memory, then (c) a window on it, then
  // their addresses. Each does what was not done before, and nothing but the window asks for other ranks. `tokens` is
  // peer_token() of every rank, see FlagMemory.
  absl::Status TakePeerFlags();
  absl::Status OpenPeerFlags(std::shared_ptr<const void> owner);
  absl::Status FindPeerFlags(absl::Span<const uint32_t> tokens);
  uint32_t peer_token() const { return flags_.token(); }
  const PeerFlags& peer_flags(Lane lane) const { return flags_.at(lane); }
  // Makes copies that wait for other ranks go on, at once for each wait of what is queued.
  void SetPeerFlags() { flags_.SetAll(); }

  // ---- what may wait on the device ----
  // From now on collectives may be launched that nothing aborts while they wait for a rank: those on
  // windows look at no flag of NCCL's.
  void AllowEndlessWaits() { endless_waits_ = true; }
  bool endless_waits() const { return endless_waits_; }
  // From now on copies to the other ranks' memory may be launched, which wait for flags.
  void AllowPeerCopies() { copies_to_peers_ = true; }
  bool copies_to_peers() const { return copies_to_peers_; }

 private:
  // (c) Runs a call of NCCL's that waits for other ranks, in a thread of its own, looking at those ranks and at the
  // clock. After an error the call may go on, and what it makes is lost.
  absl::Status WaitForRanks(std::function<absl::Status()> call);
  absl::Status Make(Lane lane, std::function<absl::StatusOr<ncclComm_t>()> call);
  // Ends the lane's communicator, if it has one, in a thread of its own.
  void End(Lane lane, ncclResult_t (*end)(ncclComm_t));

  const RankPlace& place_;
  const cudaStream_t stream_;
  std::array<ncclComm_t, kNumLanes> communicators_ = {};
  struct Ending {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> done;
  };
  std::vector<Ending> ending_;
  WindowHistory windows_;
  std::optional<std::string> why_no_windows_;
  FlagMemory flags_;
  std::optional<Window> flags_window_;
  bool endless_waits_ = false, copies_to_peers_ = false;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_COMMUNICATORS_H_
