// What parameters and sessions need of a world: memory, copies, agreement and recorders. Host ranks and CUDA implement
// it; there is one session code over both. All but Synchronize and memory is called from inside a call of what is made
// from the world, see in_use.h, and functions marked (c) are collective, see World.
#ifndef REPRISE_GRAPH_MACHINE_H_
#define REPRISE_GRAPH_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "graph/comm/collective_call.h"
#include "graph/recorder.h"
#include "reprise/graph/measure.h"
#include "reprise/graph/world.h"

namespace reprise::internal {

class Bootstrap;
class InUse;

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

// What sessions take where PlanOptions leave it to the world.
struct AutoTransports {
  std::vector<TransportChoice> choices = {};  // PlanOptions::transports
  std::string reason = {};                    // why these, for people
  // PlanOptions::sum. Between hosts kNccl: exchanges of all parts would load each network card with a ring's bytes
  // times the ranks of its host.
  Sum sum = Sum::kRankOrder;
};

class Machine : public World {
 public:
  // `ranks` reaches those of other processes; null if there are none.
  explicit Machine(std::shared_ptr<Bootstrap> ranks = nullptr);
  ~Machine() override;
  const std::shared_ptr<Bootstrap>& ranks() const { return ranks_; }

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
  MemoryUse memory() const override { return {}; }
  // FailedPrecondition while nothing can be launched: a refusal, after which the same call may succeed later.
  virtual absl::Status CheckUsable() const { return absl::OkStatus(); }
  // For the host after it has read kHostVisible memory, without a wait: may it use that? An error, also that of all
  // later calls, once another rank gave up waiting: devices then go on with bytes that mean nothing. What waits asks so
  // by itself.
  virtual absl::Status CheckResults() { return absl::OkStatus(); }

  // (c) Every local rank gives some bytes; every rank gets those of all ranks, by rank. Over the host, not the device.
  // `what` says what these are, as `Read of parameter "w"`: for messages, and to tell this call from others. A second
  // line is for messages only.
  virtual absl::StatusOr<std::vector<std::string>> ExchangeBytes(absl::string_view what,
                                                                 absl::Span<const std::string> one_per_local_rank);

  // ---- values that must be equal ----
  // Where all ranks are local they are, and none of these does anything.
  bool is_all_local() const { return static_cast<int>(local_ranks().size()) == size(); }
  // (c) OK if `mine` is OK and the values are equal on all ranks. Otherwise all get the same FailedPrecondition with
  // what differs, on which ranks; a rank whose own status is an error gets that.
  absl::Status AgreeOn(absl::string_view what, const absl::Status& mine, absl::Span<const AgreedValue> values);
  // (c) The same, but does not wait: what AgreeOn would return is returned by Announced, with what this returned. One
  // may be open at a time; the next collective call waits for it.
  absl::StatusOr<int64_t> Announce(absl::string_view what, const absl::Status& mine,
                                   absl::Span<const AgreedValue> values);
  absl::Status Announced(int64_t ticket);
  // Does not wait. Lets announcements get on, which on some rank only happens in calls; the error of Announced if it is
  // known already, and that what this rank launched would find no counterpart.
  absl::Status Progress(int64_t ticket);
  // (c) Before each launch of a schedule; costs no message. `key` is the same on all ranks, and another one for other
  // launches; so is the name, for messages. An error if nothing can be launched any more.
  virtual absl::Status NoteLaunch(uint64_t key, absl::string_view name);
  // Calls that were compared so far; the same on all ranks.
  virtual int64_t num_exchanges() const;

  // (c) Vote before anything blocks: OK if every rank's status is OK and all fingerprints are equal. Otherwise every
  // rank gets the same FailedPrecondition that names the phase, the ranks and both sides; a rank whose own status is
  // an error gets that.
  absl::Status Agree(absl::string_view phase, const absl::Status& mine, const Fingerprint& fingerprint);
  // Called by Agree before a vote that is an error: ranks whose devices wait for this one in vain may be told at once.
  void TellFailure(const absl::Status& status);

  // Recorder for schedules of `bindings->plan`, which Verify must accept. (c) unless all units of the plan use
  // kNccl, for which nothing is made ready. Unavailable if the world has no such execution or transport,
  // InvalidArgument for bindings that are not of its ranks or lack addresses. Nothing watches which threads use
  // recorders and executables.
  virtual absl::StatusOr<std::unique_ptr<Recorder>> NewRecorder(Execution execution,
                                                                std::shared_ptr<const Bindings> bindings) = 0;
  // The same, and RecordSchedule.
  absl::StatusOr<std::unique_ptr<Executable>> Record(Execution execution, std::shared_ptr<const Bindings> bindings,
                                                     int schedule);
  // The same on all ranks, until Measure. Sessions whose options have no transports, or no sum, use it.
  virtual AutoTransports auto_transports() const = 0;
  // (c) See reprise::Measure.
  virtual absl::StatusOr<CostFile> Measure(const MeasureOptions& options);

  // Which thread is inside a call of the world, or of what is made from it.
  InUse& in_use() const { return *in_use_; }

 protected:
  // What NewRecorder and copies refuse of their arguments.
  absl::Status CheckRecordable(Execution execution, const Bindings* bindings) const;
  absl::Status CheckAccess(int local, const void* a, const void* b, int64_t num_bytes) const;

  // The spans of the local ranks, in microseconds from `origin_ns`: nanoseconds of a clock that the processes of a host
  // share, so many that a double would round them.
  struct LocalProfile {
    Timeline timeline = {};
    int64_t origin_ns = 0;
  };

 private:
  friend class reprise::World;
  // BeginProfile and EndProfile alternate.
  virtual absl::Status BeginProfile(const Fingerprint&);
  virtual absl::StatusOr<LocalProfile> EndProfile();
  // The timeline of all, which starts at 0.
  static Timeline Join(std::vector<LocalProfile> profiles);
  const std::shared_ptr<Bootstrap> ranks_;
  const std::unique_ptr<InUse> in_use_;
};

inline Machine& MachineOf(World& world) { return static_cast<Machine&>(world); }
inline const Machine& MachineOf(const World& world) { return static_cast<const Machine&>(world); }
inline std::shared_ptr<Machine> MachineOf(std::shared_ptr<World> world) {
  return std::static_pointer_cast<Machine>(std::move(world));
}

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_MACHINE_H_
