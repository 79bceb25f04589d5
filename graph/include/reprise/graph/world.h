// The ranks of a job: their memory, copies and agreement. A world makes the recorders that turn schedules into
// something to replay. There is one session code over every world.
//
// Threads: one at a time in a World and in what is made from it, parameters and sessions. A call that another thread
// makes while one is inside is refused (FailedPrecondition, naming the call that is inside) and changes nothing.
// Threads may take turns at whole steps and whole evaluations, see the sessions. Calls of one thread may nest, as from
// an initializer. Destructors cannot refuse: destroy an object, or the last owner of one, while no other thread is
// inside. Recorders and executables are not watched. Functions marked (c) are collective: the same calls in the same
// order on every rank.
//
// Where ranks are in several processes each collective call but a launch compares itself with those of the other ranks,
// and what was launched before it: ranks that differ all get the same FailedPrecondition, which names what each of them
// does, and nothing was changed. The next call is in order again, unless ranks launched different things: then the
// world can launch no more, and every later call repeats that error.
#ifndef REPRISE_GRAPH_WORLD_H_
#define REPRISE_GRAPH_WORLD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "reprise/core/plan.h"
#include "reprise/core/timeline.h"
#include "reprise/graph/agreed_value.h"
#include "reprise/graph/recorder.h"

namespace reprise {
namespace internal {
class InUse;
}

// kCommunicating memory can be the source and target of collectives; kHostVisible can be read by the host while a
// replay runs.
enum class MemoryKind : uint8_t { kCommunicating, kLocal, kHostVisible };
// Of the memory that a plan's storage needs.
MemoryKind MemoryKindOf(Storage storage);

// Memory of every local rank, equal in size, aligned to kBufferAlignment. Freed with the last owner. Holds anything at
// first.
class MemoryBlock {
 public:
  virtual ~MemoryBlock() = default;
  virtual int64_t num_bytes() const = 0;
  // `local` is an index into World::local_ranks(). Null if there is no such rank or the block is empty.
  virtual std::byte* address(int local) const = 0;
};

// Bytes that a world has taken of each local rank's device memory.
struct MemoryUse {
  int64_t requested = 0;      // by Allocate, of blocks that still live
  int64_t rounding = 0;       // that the device added to these
  int64_t recording = 0;      // by what recorders made
  int64_t communication = 0;  // by all else since the world was made: communicators, kernels' code, working memory
  int64_t context = 0;        // in use before the world was made, by other processes too
};

// What sessions take where PlanOptions leave it to the world.
struct AutoTransports {
  std::vector<TransportChoice> choices = {};  // PlanOptions::transports
  std::string reason = {};                    // why these, for people
  // PlanOptions::sum. Between hosts kNccl: exchanges of all parts would load each network card with a ring's bytes
  // times the ranks of its host.
  Sum sum = Sum::kRankOrder;
};

class World {
 public:
  World();
  virtual ~World();
  virtual int size() const = 0;
  // Ranks driven by this process, ascending: one with CUDA, all of them in a HostWorld.
  virtual absl::Span<const int> local_ranks() const = 0;

  // ResourceExhausted, with the bytes asked for, if there is no room.
  virtual absl::StatusOr<std::shared_ptr<MemoryBlock>> Allocate(MemoryKind kind, int64_t num_bytes) = 0;
  // Copies between the host and memory of local rank `local`, after everything launched before. `source` may be reused
  // on return. CopyToHost waits until the bytes are there. Null is refused unless `num_bytes` is 0.
  virtual absl::Status CopyToRank(int local, void* destination, const void* source, int64_t num_bytes) = 0;
  virtual absl::Status CopyToHost(int local, void* destination, const void* source, int64_t num_bytes) = 0;
  // The same for memory that the last launch does not use and the next one reads: may run beside the last launch, and
  // ends before the next one starts. Comes after all earlier launches but not after other copies and fills, which must
  // not touch `destination`.
  virtual absl::Status StageToRank(int local, void* destination, const void* source, int64_t num_bytes) {
    return CopyToRank(local, destination, source, num_bytes);
  }
  virtual absl::Status FillBytes(int local, void* destination, uint8_t value, int64_t num_bytes) = 0;
  // FailedPrecondition while nothing can be launched: a refusal, after which the same call may succeed later.
  virtual absl::Status CheckUsable() const { return absl::OkStatus(); }
  // All zero where the memory is the host's, and while another thread is inside a call.
  virtual MemoryUse memory() const { return {}; }
  // Waits for everything launched. Errors of replays that return before they are done are found here; they mean that
  // the world is of no further use. What Replay returned belongs to that executable alone and is not repeated.
  virtual absl::Status Synchronize() = 0;

  // For the host after it has read kHostVisible memory, without a wait: may it use that? An error, also that of all
  // later calls, once another rank gave up waiting: devices then go on with bytes that mean nothing. What waits asks so
  // by itself.
  virtual absl::Status CheckResults() { return absl::OkStatus(); }

  // (c) Every local rank gives some bytes; every rank gets those of all ranks, by rank. Over the host, not the device.
  // `what` says what these are, as `Read of parameter "w"`: for messages, and to tell this call from others. A second
  // line is for messages only.
  virtual absl::StatusOr<std::vector<std::string>> ExchangeBytes(absl::string_view what,
                                                                 absl::Span<const std::string> one_per_local_rank) = 0;

  // ---- values that must be equal ----
  // Where all ranks are local they are, and none of these does anything.
  bool is_all_local() const { return static_cast<int>(local_ranks().size()) == size(); }
  // (c) OK if `mine` is OK and the values are equal on all ranks. Otherwise all get the same FailedPrecondition with
  // what differs, on which ranks; a rank whose own status is an error gets that.
  virtual absl::Status AgreeOn(absl::string_view what, const absl::Status& mine, absl::Span<const AgreedValue> values);
  // (c) The same, but does not wait: what AgreeOn would return is returned by Announced, with what this returned. One
  // may be open at a time; the next collective call waits for it.
  virtual absl::StatusOr<int64_t> Announce(absl::string_view, const absl::Status& mine, absl::Span<const AgreedValue>) {
    return mine.ok() ? absl::StatusOr<int64_t>(0) : mine;
  }
  virtual absl::Status Announced(int64_t) { return absl::OkStatus(); }
  // Does not wait. Lets announcements get on, which on some rank only happens in calls; the error of Announced if it is
  // known already, and that what this rank launched would find no counterpart.
  virtual absl::Status Progress(int64_t) { return absl::OkStatus(); }
  // (c) Before each launch of a schedule, by sessions; costs no message. `key` is the same on all ranks, and another
  // one for other launches; so is the name, for messages. An error if nothing can be launched any more.
  virtual absl::Status NoteLaunch(uint64_t, absl::string_view) { return absl::OkStatus(); }
  // Calls that were compared so far; the same on all ranks.
  virtual int64_t num_exchanges() const { return 0; }

  // Called by Agree before a vote that is an error: ranks whose devices wait for this one in vain may be told at once.
  virtual void TellFailure(const absl::Status&) {}

  // Recorder for schedules of `bindings->plan`, which Verify must accept. (c) unless all units of the plan use
  // kNccl, for which nothing is made ready. Unavailable if the world has no such execution or transport,
  // InvalidArgument for bindings that are not of its ranks or lack addresses.
  virtual absl::StatusOr<std::unique_ptr<Recorder>> NewRecorder(Execution execution,
                                                                std::shared_ptr<const Bindings> bindings) = 0;

  // The same on all ranks, for as long as the world lives. Sessions whose options have no transports, or no sum, use
  // it.
  virtual AutoTransports auto_transports() const = 0;

  // (c) Between a warm-up and recording: chooses among kernels that do the same the quickest for what ran so far. What
  // runs or is recorded from then on uses these, so its results may differ in rounding from those before. Sessions call
  // it. Does nothing unless the world was made to, see CudaWorldOptions::tuning_file.
  virtual absl::Status Tune() { return absl::OkStatus(); }

  // (c) From now on, until StopProfile, replays of recordings of this plan, or of one that is equal, are timed; they
  // may take longer than others. Those of a session that is created meanwhile are among them, its warm-up too; all are
  // numbered in launch order. Waits. On devices one profile per process is open at a time, and the thread that starts
  // it is the one that replays. Unavailable where a rank cannot (on devices: without CUPTI, or while another profiler
  // uses it), FailedPrecondition while a profile is open, InvalidArgument for a plan of another world size.
  absl::Status StartProfile(const Plan& plan);
  // (c) Waits. The spans of all ranks; none if nothing was replayed. Ranks on one host share a clock; on several, times
  // are those of each host's clock. FailedPrecondition if no profile is open.
  absl::StatusOr<Timeline> StopProfile();

  // (c) Sum over ranks, in rank order; every rank gets the same. `of` says what is summed, as "losses": sums that are
  // not of the same thing are refused.
  absl::StatusOr<double> Sum(absl::Span<const double> one_per_local_rank, absl::string_view of = "values");
  // (c) Vote before anything blocks: OK if every rank's status is OK and all fingerprints are equal. Otherwise every
  // rank gets the same FailedPrecondition that names the phase, the ranks and both sides; a rank whose own status is
  // an error gets that.
  absl::Status Agree(absl::string_view phase, const absl::Status& mine, const Fingerprint& fingerprint);

  // For what is made from the world: which thread is inside a call of either.
  internal::InUse& in_use() const { return *in_use_; }

 protected:
  // The spans of the local ranks, in microseconds from `origin_ns`: nanoseconds of a clock that the processes of a host
  // share, so many that a double would round them.
  struct LocalProfile {
    Timeline timeline = {};
    int64_t origin_ns = 0;
  };

 private:
  // BeginProfile and EndProfile alternate.
  virtual absl::Status BeginProfile(const Fingerprint&);
  virtual absl::StatusOr<LocalProfile> EndProfile();
  // The timeline of all, which starts at 0.
  static Timeline Join(std::vector<LocalProfile> profiles);
  bool profiles_ = false;
  const std::unique_ptr<internal::InUse> in_use_;
};

}  // namespace reprise

#endif  // REPRISE_GRAPH_WORLD_H_
