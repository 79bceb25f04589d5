// What one rank owns on its device: streams, communicators, working memory and the connections to the other ranks.
// Shared by the world, its memory and its executables, so that they may be destroyed in any order.
#ifndef REPRISE_GRAPH_CUDA_CUDA_RANK_H_
#define REPRISE_GRAPH_CUDA_CUDA_RANK_H_

#include <nccl.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "graph/comm/bootstrap.h"
#include "graph/comm/shared_word.h"
#include "graph/cuda/caller_state.h"
#include "graph/cuda/device_profile.h"
#include "graph/cuda/driver_api.h"
#include "graph/cuda/handles.h"
#include "graph/cuda/peer_copies.h"
#include "graph/cuda/process_memory.h"
#include "graph/cuda/window_history.h"
#include "kernels/cuda/cuda_kernels.h"
#include "reprise/core/control_block.h"
#include "reprise/core/schedule.h"
#include "reprise/graph/cuda_world.h"

namespace reprise::internal {

class CudaRank : public std::enable_shared_from_this<CudaRank> {
 public:
  // Streams, kernels and working memory on a device; asks nothing of the other ranks.
  // `one_host`: all ranks are on this host.
  static absl::StatusOr<std::shared_ptr<CudaRank>> Create(int device, bool one_host, const CudaWorldOptions& options,
                                                          std::shared_ptr<Bootstrap> bootstrap);
  ~CudaRank();

  static constexpr Lane kCommunicatingLanes[] = {Lane::kAllGather, Lane::kReduceScatter};
  // (c) Once for each of those: from a new id, the same on all ranks, or from the caller's communicator.
  absl::Status NewCommunicator(Lane lane, const ncclUniqueId& id);
  absl::Status SplitCommunicator(Lane lane, ncclComm_t parent);
  // (c) Runs a call of NCCL's that waits for other ranks, in a thread of its own, looking at those ranks and at the
  // clock. After an error the call may go on, and what it makes is lost.
  absl::Status WaitForRanks(std::function<absl::Status()> call);

  int device() const { return device_; }
  bool one_host() const { return one_host_; }
  int rank() const { return bootstrap_->rank(); }
  int size() const { return bootstrap_->size(); }
  const DriverApi& driver() const { return driver_; }

  cudaStream_t launch_stream() const { return launch_stream_; }
  // Copies here run beside the last launch. The next launch and every wait come after them.
  cudaStream_t staging_stream() const { return staging_stream_.get(); }
  // What is enqueued there from now on comes after all launches but the last.
  absl::Status BeginStaging();
  // Where commands of a lane are enqueued: blocking streams, so that a call on the legacy stream while one is captured
  // is an error and not lost.
  cudaStream_t lane_stream(Lane lane) const { return lanes_[static_cast<int>(lane)].stream.get(); }
  Stream stream(Lane lane) const { return Stream(lane_stream(lane), lanes_[static_cast<int>(lane)].kernels.get()); }
  // Working memory of the lane's kernels, which use it in turn.
  void* workspace(Lane lane) const { return workspaces_[static_cast<int>(lane)]; }
  // Those that compute functions use.
  kernels::CudaKernels& compute_kernels() const { return *lanes_[static_cast<int>(Lane::kCompute)].kernels; }
  // Null if it was not made.
  ncclComm_t communicator(Lane lane) const { return lanes_[static_cast<int>(lane)].communicator; }
  // Flags for copies to the other ranks' memory, for each communicating lane: memory, then (c) a window on it, then
  // their addresses. Each does what was not done before, and nothing but the window asks for other ranks. `tokens` is
  // peer_token() of every rank, which lies beside its flags and is read through its address.
  absl::Status TakePeerFlags();
  absl::Status OpenPeerFlags();
  absl::Status FindPeerFlags(absl::Span<const uint32_t> tokens);
  uint32_t peer_token() const { return token_; }
  // Why devices cannot use each other's memory, empty if they can: what the ranks found out together. Unset before.
  const std::optional<std::string>& why_no_windows() const { return why_no_windows_; }
  void SetWhyNoWindows(std::string why) { why_no_windows_ = std::move(why); }
  const PeerFlags& peer_flags(Lane lane) const { return lanes_[static_cast<int>(lane)].peer_flags; }
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
  // Where this rank's device sees the memory of each rank in it, by rank. After TakePeerFlags. Unavailable if the
  // devices cannot reach each other's memory.
  absl::StatusOr<std::vector<std::byte*>> PeerAddresses(const Window& window);

  // FailedPrecondition while the caller captures the launch stream; the first failure of a wait.
  absl::Status CheckUsable() const;
  // Around each launch of a schedule. Admit waits while many are outstanding, so that no launch blocks in the driver,
  // where nothing looks at the clock.
  absl::Status Admit();
  absl::Status Launched(bool is_graph);
  // Waits until all that was launched is done, launch by launch, or what came before an event on the launch stream. If
  // a rank goes away, or one launch takes longer than the deadline, collectives are made to leave the device, and this
  // error is final.
  absl::Status Wait();
  absl::Status WaitFor(cudaEvent_t event);
  // NCCL allows no eager collective while a graph that uses its communicator is outstanding, see graph/README.md.
  absl::Status WaitForGraphs() { return graph_launched_ ? Wait() : absl::OkStatus(); }
  // After a wait that succeeded, or a look at memory that the host sees: may what is there be used? The error of a rank
  // that gave up, which is then this one's, too: its device goes on with bytes that mean nothing, and makes those of
  // others go on. Wait does this last.
  absl::Status CheckResults();
  // A word that all ranks share and that says, from the time on before which nothing was made to go on, which rank gave
  // up: its number + 1. Without one, of ranks on several hosts, CheckResults looks for messages, which such bytes may
  // overtake.
  void SetGaveUpWord(std::unique_ptr<SharedWord> word) { gave_up_word_ = std::move(word); }
  bool has_gave_up_word() const { return gave_up_word_ != nullptr; }
  // For destructors: waits as long as that makes sense. False if the device may still use what was launched: its memory
  // must then be left to it.
  bool Drain();

  // From now on collectives may be launched that nothing makes leave the device while they wait for a rank: those on
  // windows look at no flag of NCCL's.
  void AllowEndlessWaits() { endless_waits_ = true; }
  // From now on copies to the other ranks' memory may be launched, which wait for flags.
  void AllowPeerCopies() { copies_to_peers_ = true; }

  // ---- profiles ----
  // Waits, and times replays of the plan with this fingerprint until StopProfile, which waits too.
  absl::Status StartProfile(const Fingerprint& plan);
  absl::StatusOr<Timeline> StopProfile(int64_t& origin_ns);
  // Null if replays of the plan are not timed.
  DeviceProfile* ProfileOf(const Plan& plan) const {
    return profile_ != nullptr && plan.fingerprint == profiled_plan_ ? profile_.get() : nullptr;
  }

  // ---- device memory, in bytes ----
  // Free on the device, for whichever process comes first.
  absl::StatusOr<int64_t> FreeBytes() const;
  // In use: on the whole device, or by this process where ranks share it.
  absl::StatusOr<int64_t> TakenBytes() const;
  void AddRequested(int64_t requested, int64_t taken) {
    use_.requested += requested;
    use_.rounding += taken - requested;
  }
  void AddRecording(int64_t taken) { use_.recording += taken; }  // or given back
  MemoryUse memory() const;

 private:
  struct LaneParts {
    StreamHandle stream;
    std::unique_ptr<kernels::CudaKernels> kernels;
    ncclComm_t communicator = nullptr;
    PeerFlags peer_flags;
  };

  CudaRank(int device, bool one_host, absl::Duration deadline, std::shared_ptr<Bootstrap> bootstrap)
      : device_(device), one_host_(one_host), deadline_(deadline), bootstrap_(std::move(bootstrap)) {}
  absl::Status Open(const CudaWorldOptions& options);
  absl::Status OpenLane(Lane lane, int priority);
  absl::Status MakeCommunicator(Lane lane, std::function<absl::StatusOr<ncclComm_t>()> call);
  // One look at whether waiting still makes sense.
  absl::Status CheckPeers(absl::Duration waited) const;
  void Fail(const absl::Status& status);
  // Leaves all that the device may still use to it.
  void Abandon();
  // Makes copies that wait for other ranks go on.
  void SetPeerFlags();
  // Makes the lane's collectives leave the device.
  void Abort(Lane lane) { End(lane, ncclCommAbort); }
  // Ends the lane's communicator, if it has one, in a thread of its own.
  void End(Lane lane, ncclResult_t (*end)(ncclComm_t));
  // Waits for these threads as long as that makes sense; what then still runs is lost.
  void JoinEnding();
  // Does the device come to the end of what was launched, with copies that wait for other ranks made to go on?
  bool Ends(absl::Duration within);
  // What the launch stream runs from now on comes after what was staged.
  absl::Status EndStaging();

  const int device_;
  const bool one_host_;
  const absl::Duration deadline_;
  const std::shared_ptr<Bootstrap> bootstrap_;
  DriverApi driver_;
  StreamHandle own_stream_;
  cudaStream_t launch_stream_ = nullptr;
  StreamHandle staging_stream_;
  EventHandle staged_;
  bool is_staging_ = false;
  std::array<LaneParts, kNumLanes> lanes_;
  std::vector<void*> workspaces_;         // by lane
  uint32_t* flags_ = nullptr;             // of all communicating lanes, then PeerFlags::set, then the token
  std::vector<uint32_t> set_flags_;       // what makes waits for other ranks end
  std::byte** peer_addresses_ = nullptr;  // device memory, one for each rank
  uint32_t token_ = 0;                    // behind them
  std::optional<Window> flags_window_;
  WindowHistory windows_;
  StreamHandle flags_stream_;
  EventHandle waited_for_;
  // Launches that may be outstanding: enough that the device never waits for the host, and far fewer than the about
  // thousand that the driver takes before it blocks.
  static constexpr int64_t kMaxOutstanding = 32;
  std::array<EventHandle, kMaxOutstanding> ends_;
  int64_t launched_ = 0, finished_ = 0;
  bool graph_launched_ = false;
  absl::Status failed_;
  struct Ending {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> done;
  };
  std::vector<Ending> ending_;  // communicators
  std::unique_ptr<SharedWord> gave_up_word_;
  bool endless_waits_ = false, copies_to_peers_ = false;
  std::optional<std::string> why_no_windows_;
  bool lost_ = false;  // the device or NCCL did not come to an end after a failure
  MemoryUse use_;
  std::unique_ptr<ProcessMemory> process_memory_;  // null where the device is this rank's alone
  int64_t taken_at_start_ = 0;
  std::unique_ptr<DeviceProfile> profile_;
  Fingerprint profiled_plan_;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_CUDA_RANK_H_
