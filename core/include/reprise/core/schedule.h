// A schedule: the commands of one graph in issue order, each with its lane, the buffer ranges it uses and its waits.
// Plain data, equal for every rank, comparable and printable.
//
// Each lane runs its commands in issue order and becomes one stream. Between lanes only waits order commands. A wait
// names an earlier command, which stands for its own completion.
#ifndef REPRISE_CORE_SCHEDULE_H_
#define REPRISE_CORE_SCHEDULE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "reprise/core/element.h"
#include "reprise/core/ids.h"
#include "reprise/core/transport.h"

namespace reprise {

// kCompute is the origin: the other lanes fork from its first command and are joined by its last one.
enum class Lane : uint8_t { kCompute, kAllGather, kReduceScatter, kCopy };
inline constexpr int kNumLanes = 4;

enum class Phase : uint8_t { kForward, kBackward };

// ---- buffer uses ----

// kAssign reads none of the range, and what was there is lost: a byte that the command does not write, as padding,
// holds anything. kUpdate reads and writes.
enum class Access : uint8_t { kRead, kAssign, kUpdate };

// What a range is to the command that uses it. `id` of the use is a ParameterId, TensorId or group index, as noted.
enum class Role : uint8_t {
  kShard,              // group: this rank's part of the weights, source of an all-gather
  kGathered,           // group: whole weights of a unit
  kParameter,          // parameter: a view into gathered weights
  kInput,              // tensor
  kOutput,             // tensor
  kSaved,              // tensor
  kState,              // tensor
  kScratch,            // -
  kOutputGradient,     // tensor; for the loss, the control block's loss_scale
  kInputGradient,      // tensor
  kParameterGradient,  // parameter: where backward writes
  kReduceBuffer,       // group: gradient in reduce dtype, with its padding, which holds anything
  kReceived,           // group: what a reduction delivers: the other ranks' parts in rank order, or their sum
  kAccumulator,        // group: this rank's part of the summed gradient
  kMaster,             // group: this rank's part of the master weights
  kOptimizerState,     // group; several uses with one group are the states in order
  kStaging,            // tensor: all staging slots of an input
  kControl,            // - : ControlBlock
  kStepState,          // - : StepState
  kNormPartials,       // group: its part of the partial norms, see norm_ranges.h; in SumNorm all of them, without id
  kNormParts,          // - : a NormPart of this rank, then those of all ranks
  kMetrics,            // - : MetricsRing
};

// A use of this rank's memory or, with `peers`, of the same range on each other rank of an axis; only commands that
// order the ranks of that axis have such.
struct BufferUse {
  BufferId buffer;
  int64_t offset = 0;     // bytes into the buffer
  int64_t num_bytes = 0;  // may be 0: the use then conflicts with nothing
  Access access = Access::kRead;
  Role role = Role::kControl;
  int32_t id = -1;
  AxisId peers = {};  // invalid: this rank's own memory

  bool is_own() const { return !peers.valid(); }
  friend bool operator==(const BufferUse&, const BufferUse&) = default;
};

// ---- commands: a closed set, visited without a default ----

struct Begin {  // first command, on the compute lane: other lanes fork from it
  friend bool operator==(const Begin&, const Begin&) = default;
};
struct NextMicrobatch {  // advances the control block's counters to this replay's first microbatch
  int count = 1;         // microbatches of this schedule
  friend bool operator==(const NextMicrobatch&, const NextMicrobatch&) = default;
};
// Copies each input from its staging slot, (control.earlier_microbatches + control.microbatch + position) mod slots.
// The first position's is on the compute lane, the others' on the copy lane.
struct StageInputs {
  int position = 0;
  int slots = 2;
  friend bool operator==(const StageInputs&, const StageInputs&) = default;
};
struct AllGather {
  UnitId unit;
  int slot = 0;  // weight slot
  Transport transport = Transport::kNccl;
  AxisId axis;
  friend bool operator==(const AllGather&, const AllGather&) = default;
};
struct Forward {
  CallId call;
  int position = 0;
  bool recompute = false;  // runs just before Backward, to make the saved tensors again
  friend bool operator==(const Forward&, const Forward&) = default;
};
struct Backward {
  CallId call;
  int position = 0;
  friend bool operator==(const Backward&, const Backward&) = default;
};
struct PackGradients {  // casts the gradients of the unit's groups that compute did not write in reduce dtype
  UnitId unit;
  int position = 0;
  friend bool operator==(const PackGradients&, const PackGradients&) = default;
};
struct ReduceScatter {
  UnitId unit;
  int position = 0;  // of the microbatch that made the gradient; -1: the last one of the replay before
  int slot = 0;      // gradient slot; -1: none, the unit's unsharded gradient is read where it is
  Transport transport = Transport::kNccl;
  Sum sum = Sum::kRankOrder;
  AxisId axis;
  friend bool operator==(const ReduceScatter&, const ReduceScatter&) = default;
};
// A run of elements of a group, of all ranks together, that hold gradients and no padding.
struct GroupSegment {
  int group = 0;  // in UnitLayout::groups
  int64_t first_element = 0;
  int64_t num_elements = 0;
  friend bool operator==(const GroupSegment&, const GroupSegment&) = default;
};
// Adds what a reduction delivered on `segments` to the accumulators, on each rank where its shard has them.
//
// In the step's last microbatch, and always with kAlwaysAssign, it also assigns the unit's partial norms, from the
// values that it stores; in the others it leaves them.
struct Accumulate {
  UnitId unit;
  int position = 0;
  Sum sum = Sum::kRankOrder;  // of its reduction: kRankOrder adds this rank's own part, which it reads where it is
  AccumulateMode mode = AccumulateMode::kByMicrobatch;
  bool beside_compute = false;              // a Forward or Backward comes after it in the schedule
  std::vector<GroupSegment> segments = {};  // by group and element, apart
  friend bool operator==(const Accumulate&, const Accumulate&) = default;
};
struct RecordLoss {  // adds the microbatch's loss to the step state
  int position = 0;
  friend bool operator==(const RecordLoss&, const RecordLoss&) = default;
};
struct SumNorm {  // of all partial norms, then over ranks, in a fixed order: norm, loss, why to skip the step
  AxisId axis;
  friend bool operator==(const SumNorm&, const SumNorm&) = default;
};
struct UpdateParameters {  // the optimizer on this rank's masters of the unit
  UnitId unit;
  friend bool operator==(const UpdateParameters&, const UpdateParameters&) = default;
};
struct RefreshShards {  // casts the unit's masters to the shards that are gathered
  UnitId unit;
  friend bool operator==(const RefreshShards&, const RefreshShards&) = default;
};
struct PublishMetrics {  // hands the step's metrics to the host and clears the sums
  friend bool operator==(const PublishMetrics&, const PublishMetrics&) = default;
};
struct End {  // last command, on the compute lane: joins every lane
  friend bool operator==(const End&, const End&) = default;
};

using Command =
    std::variant<Begin, NextMicrobatch, StageInputs, AllGather, Forward, Backward, PackGradients, ReduceScatter,
                 Accumulate, RecordLoss, SumNorm, UpdateParameters, RefreshShards, PublishMetrics, End>;

// For std::visit with one lambda per command.
template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

// The axis whose ranks execute the command together, and which it so orders: on none of them does it end before it
// began on all. None for a command of one rank.
std::optional<AxisId> OrderedAxis(const Command& command);
inline bool IsCollective(const Command& command) { return OrderedAxis(command).has_value(); }

// ---- waits ----

// Why a wait is needed; without it, this check of Verify is the first that fails.
//   kData: two conflicting uses of one buffer.
//   kOrder: a limit of the plan: a slot's previous copy must be done, or the prefetch depth.
//   kFork: the lane's first command must follow Begin.
//   kJoin: End must follow the lane's last command.
enum class WaitReason : uint8_t { kData, kOrder, kFork, kJoin };

struct Wait {
  CommandId command;
  WaitReason reason = WaitReason::kData;
  friend bool operator==(const Wait&, const Wait&) = default;
};

struct ScheduledCommand {
  Command command;
  Lane lane = Lane::kCompute;
  std::vector<BufferUse> uses = {};
  std::vector<Wait> waits = {};  // at most one per other lane, by command id; none is implied by the others
  friend bool operator==(const ScheduledCommand&, const ScheduledCommand&) = default;
};

// ---- states between graphs ----

// A gathered copy that lives across graphs.
struct Resident {
  UnitId unit;
  BufferId buffer;
  int slot = 0;
  friend bool operator==(const Resident&, const Resident&) = default;
};

// A reduction that a graph leaves to the next one.
struct OutstandingReduction {
  UnitId unit;
  BufferId buffer;
  int slot = 0;
  friend bool operator==(const OutstandingReduction&, const OutstandingReduction&) = default;
};

// What holds before or after a graph. A graph may follow another if what it starts from is a subset of the residents,
// and exactly the outstanding reductions and the gradients, that the other ends with.
struct ScheduleState {
  std::vector<Resident> residents = {};                // by unit
  std::vector<OutstandingReduction> outstanding = {};  // by unit
  bool gradients = false;                              // Reduce::kOncePerStep: the unsharded gradients hold a sum
  friend bool operator==(const ScheduleState&, const ScheduleState&) = default;
};

struct Schedule {
  std::string name;      // "first", "body", "finish", "step"
  int microbatches = 0;  // positions 0 to microbatches - 1; 0 for finish and step
  std::vector<ScheduledCommand> commands = {};
  ScheduleState start = {}, end = {};
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

// Words of the plan's text and of messages: "all_gather", "compute", "data" and so on.
absl::string_view Name(Lane lane);
absl::string_view Name(Access access);
absl::string_view Name(Role role);
absl::string_view Name(WaitReason reason);
absl::string_view Name(WriteMode mode);
absl::string_view Name(Phase phase);

}  // namespace reprise

#endif  // REPRISE_CORE_SCHEDULE_H_
