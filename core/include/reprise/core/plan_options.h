// What a caller may decide about a plan, and its text: the names and words that programs read as flags, plans print and
// messages use.
#ifndef REPRISE_CORE_PLAN_OPTIONS_H_
#define REPRISE_CORE_PLAN_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "reprise/core/dtype.h"
#include "reprise/core/transport.h"

namespace reprise {

// kKeep: slots keep their weights until something else needs them, and what is resident is not gathered again.
// kOff: weights are released after the last consecutive call of a phase that needs them.
enum class Residency : uint8_t { kKeep, kOff };
// When a unit's gradient is reduced. kOncePerStep keeps the unsharded gradient in the accumulate dtype until `finish`,
// which reduces it where it is if that is the reduce dtype of the whole unit, and packs it first otherwise.
enum class Reduce : uint8_t { kEveryMicrobatch, kOncePerStep };
// Where the last reduction of a graph runs: at its end, or at the head of the next graph (the last one in `finish`).
enum class Tail : uint8_t { kInGraph, kCarried };

// Of accumulators and of the unsharded gradients of Reduce::kOncePerStep.
inline constexpr DType kAccumulateDType = DType::kFloat32;

// Unset: the planner's choice, shown in the plan's text. The planner writes its choices into Plan::options.
struct PlanOptions {
  // Of the calls that read weights, the gather for the i-th waits for the one numbered i - 1 - depth; at least 0,
  // default 1.
  std::optional<int> prefetch_depth = {};
  std::optional<int> weight_slots = {};  // gathered copies that live at once; at least 1, default 2
  // Reduce buffers that live at once; at least 1, default 2. A plan has no more than units times
  // microbatches_per_graph, or 2 where these are fewer.
  std::optional<int> gradient_slots = {};
  std::optional<int> microbatches_per_graph = {};  // at least 1, default 1
  Residency residency = Residency::kKeep;
  Reduce reduce = Reduce::kEveryMicrobatch;
  Tail tail = Tail::kInGraph;
  // By ascending unit_bytes, see EveryUnit. Where there is none sessions take those of their world and the planner
  // alone kNccl for all. A plan has one for all units if all are alike.
  std::vector<TransportChoice> transports = {};
  // Where it is unset sessions take what their world proposes, see Plan::unit_policies, and the planner alone
  // kRankOrder.
  std::optional<Sum> sum = {};
  DType reduce_dtype = DType::kBFloat16;  // of gradients in a reduce-scatter
  DType master_dtype = DType::kFloat32;   // sessions set it from their ShardedParameters
  int optimizer_states = 2;               // fp32 values kept per master element, 0 to 16; sessions set it

  friend bool operator==(const PlanOptions&, const PlanOptions&) = default;
};

// The words of these enums; "?" for what does not exist.
absl::string_view Name(Residency residency);
absl::string_view Name(Reduce reduce);
absl::string_view Name(Tail tail);

// One option of PlanOptions as text.
struct PlanOptionText {
  absl::string_view name = {};  // of the field, of flags and of plans: "weight_slots"
  absl::string_view help = {};  // what it decides, for people
  // The words that it takes, such as "keep, off"; empty where it is a number or a list, which `help` describes.
  std::string (*words)() = nullptr;
  std::string (*get)(const PlanOptions& options) = nullptr;  // "auto": unset
  // Reads what `get` writes. InvalidArgument for other text, which changes nothing: a message to follow the name, such
  // as "is \"on\"; give one of: keep, off".
  absl::Status (*set)(PlanOptions& options, absl::string_view text) = nullptr;
};
// Each once, in the order of the fields.
absl::Span<const PlanOptionText> PlanOptionTexts();

}  // namespace reprise

#endif  // REPRISE_CORE_PLAN_OPTIONS_H_
