// A plan: everything that is decided before memory is taken. The schedules of a step, the buffers they use and where
// each buffer lies. Equal inputs give equal plans on every rank; the fingerprint says so in 128 bits.
#ifndef REPRISE_CORE_PLAN_H_
#define REPRISE_CORE_PLAN_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/core/layout.h"
#include "reprise/core/model.h"
#include "reprise/core/plan_options.h"
#include "reprise/core/schedule.h"

namespace reprise {

// Who owns a buffer's bytes, and in which kind of memory. Each is one block per rank; offsets are from its start.
enum class Storage : uint8_t {
  kWeights,  // persistent, communicates: shards that are gathered; owned by ShardedParameters
  kMasters,  // persistent: master shards, where their dtype differs from the weights'; owned by ShardedParameters
  kSession,  // persistent: accumulators, optimizer state, staging, outputs, state, control, unsharded gradients to pack
  kGradients,      // persistent, communicates: unsharded gradients that are reduced where they are
  kHostVisible,    // persistent: metrics, which the host reads while the device runs
  kCommunicating,  // transient arena of gathered weights, reduce buffers and what reduce-scatters deliver
  kLocal,          // transient arena of everything else
  kExternal,       // the user's; offset is 0
};
inline constexpr int kNumStorages = 8;
absl::string_view Name(Storage storage);
constexpr bool IsTransient(Storage storage) { return storage == Storage::kCommunicating || storage == Storage::kLocal; }

// Bytes: start of every buffer. cuBLASLt asks for 256 of its workspace; nothing else asks for more.
inline constexpr int64_t kBufferAlignment = 256;

struct Buffer {
  // For people: what it holds, of which microbatch, and, where several schedules have such a buffer, of which schedule.
  std::string name;
  Storage storage = Storage::kLocal;
  int64_t num_bytes = 0;
  int64_t offset = 0;  // in its storage; a multiple of kBufferAlignment

  friend bool operator==(const Buffer&, const Buffer&) = default;
};

// What was decided for one unit.
struct UnitPolicy {
  UnitTransports transports = {};
  Sum sum = Sum::kRankOrder;

  friend bool operator==(const UnitPolicy&, const UnitPolicy&) = default;
};

// Persistent buffers of a unit; each vector is by group. Frozen groups have only weights and masters.
struct UnitBuffers {
  std::vector<BufferId> weights = {};
  std::vector<BufferId> masters = {};       // the weights' buffer where the dtypes are equal
  std::vector<BufferId> accumulators = {};  // invalid ids for frozen groups
  BufferId unsharded_gradient = {};  // Reduce::kOncePerStep only: as a reduce buffer, but all in the accumulate dtype
  std::vector<std::vector<BufferId>> optimizer_states = {};
  std::vector<int64_t> norm_partials = {};  // byte offset in Plan::norm_partials; frozen groups have no bytes there

  friend bool operator==(const UnitBuffers&, const UnitBuffers&) = default;
};

// Buffers of a tensor that outlive a replay; invalid ids where there is none.
struct TensorBuffers {
  BufferId staging;        // inputs: PlanOptions::microbatches_per_graph * 2 slots, each padded to kBufferAlignment
  BufferId value;          // outputs, state and external tensors
  BufferId kept_gradient;  // ModelBuilder::KeepGradient

  friend bool operator==(const TensorBuffers&, const TensorBuffers&) = default;
};

struct MemoryPlan {
  std::array<int64_t, kNumStorages> num_bytes = {};  // by Storage; 0 for kExternal
  // Transient storages: no placement can use less, because in some legal order this many bytes are live at one moment.
  std::array<int64_t, kNumStorages> lower_bound = {};

  int64_t persistent_bytes() const;
  int64_t transient_bytes() const;
  int64_t transient_lower_bound_bytes() const;
  friend bool operator==(const MemoryPlan&, const MemoryPlan&) = default;
};

struct Fingerprint {
  uint64_t high = 0, low = 0;

  std::string ToString() const;  // 32 hexadecimal digits
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

// The ranks that a communication command spans.
struct Axis {
  std::string name;
  int size = 1;
  friend bool operator==(const Axis&, const Axis&) = default;
};

struct Plan {
  Model model;
  ModelLayout layout;
  PlanOptions options;  // nothing unset
  std::vector<Axis> axes = {};
  std::vector<UnitPolicy> unit_policies = {};  // by UnitId
  std::vector<Buffer> buffers = {};
  std::vector<UnitBuffers> unit_buffers = {};      // by UnitId
  std::vector<TensorBuffers> tensor_buffers = {};  // by TensorId
  BufferId control;
  BufferId step_state, norm_partials, norm_parts, metrics;  // invalid in a forward plan

  // Distinct schedules. A step of n microbatches runs first, then body until n are done, then finish and step, those
  // that exist. Equal schedules are stored once: in the basic plan body == first and there is no finish.
  std::vector<Schedule> schedules = {};
  int first = 0, body = 0;     // indices into schedules
  int finish = -1, step = -1;  // -1: none

  int weight_slots = 0;              // used: options.weight_slots, or fewer if the model needs fewer
  int dedicated_gradient_slots = 0;  // extra gradient slots, one for each unit whose gradient is held across other
                                     // units' or carried to the next graph
  MemoryPlan memory;
  Fingerprint fingerprint;  // of all the above

  int world_size() const { return layout.world_size; }
  // An id of this plan; any other is undefined behaviour, as for std::vector.
  const Buffer& buffer(BufferId id) const { return buffers[id.value()]; }
  // The reduce dtype of a group.
  DType reduce_dtype(const FlatGroup& group) const { return group.reduce_dtype.value_or(options.reduce_dtype); }
  friend bool operator==(const Plan&, const Plan&) = default;
};

// Byte offset of each group of a unit in its reduce buffer, then the total; groups start at multiples of
// kBufferAlignment, frozen ones take no room.
std::vector<int64_t> ReduceOffsets(const Plan& plan, UnitId unit);
// Parts that each rank receives in a reduction: one of each other rank, or a sum.
int ReceivedParts(const Plan& plan, Sum sum);
// In an exchange: which of the parts that rank `to` receives is that of rank `from`, another one. They are in order.
inline int PlaceOfPart(int from, int to) { return from < to ? from : from - 1; }

// Counts over the schedules that one step of `microbatches` runs (for a forward plan, that many replays).
struct PlanSummary {
  int microbatches = 1;
  int64_t all_gathers = 0, reduce_scatters = 0, commands = 0, waits = 0;
  int64_t persistent_bytes = 0, transient_bytes = 0, transient_lower_bound_bytes = 0;  // per rank
  Fingerprint fingerprint;
};
// InvalidArgument unless `microbatches` is a positive multiple of microbatches_per_graph, and the plan's schedules
// exist.
absl::StatusOr<PlanSummary> Summarize(const Plan& plan, int microbatches);

// Stable over runs, ranks, compilers and machines. Ignores Plan::fingerprint itself.
Fingerprint ComputeFingerprint(const Plan& plan);

// Golden-test form: options, memory and every command with its lane, uses and waits.
std::string ToText(const Plan& plan);
// The same as JSON, with the `summary` object of Summarize(plan, microbatches).
absl::StatusOr<std::string> ToJson(const Plan& plan, int microbatches);
// Graphviz: one cluster per schedule, one column per lane, an edge per wait coloured by reason.
std::string ToDot(const Plan& plan);
// One command as in the text form, without uses and waits: "all_gather u0 slot 1 nccl".
std::string Describe(const Plan& plan, const Command& command);

}  // namespace reprise

#endif  // REPRISE_CORE_PLAN_H_
