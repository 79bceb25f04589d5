// How weights and gradients travel between ranks, and how gradients are added: values of a plan, unit by unit.
#ifndef REPRISE_CORE_TRANSPORT_H_
#define REPRISE_CORE_TRANSPORT_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace reprise {

// How bytes travel, never what is added: results are the same bits with each.
enum class Transport : uint8_t { kNccl, kSymmetric, kCopyEngine };

// What planner, verifier and recorders ask about a transport: a new one is a row here and a file in
// graph/cuda/transports.
struct TransportTraits {
  Transport transport = Transport::kNccl;
  absl::string_view name = {};  // in texts and flags
  // Its memory lies in windows that all ranks of the axis map: they are on one host, with NCCL 2.28.7 or later.
  bool windows = false;
  // A rank writes what the others receive in their memory, and not in buffers of NCCL's.
  bool writes_peers = false;
  bool adds = false;  // can exchange with Sum::kNccl
};
inline constexpr std::array<TransportTraits, 3> kTransports = {{
    {Transport::kNccl, "nccl", false, false, true},
    {Transport::kSymmetric, "symmetric", true, true, false},
    {Transport::kCopyEngine, "copy_engine", true, true, false},
}};
// Of a transport that exists, see IsKnown.
constexpr const TransportTraits& TraitsOf(Transport transport) { return kTransports[static_cast<size_t>(transport)]; }
constexpr bool IsKnown(Transport transport) { return static_cast<size_t>(transport) < kTransports.size(); }
// "unknown" for one that does not exist.
absl::string_view Name(Transport transport);

// How the parts of a gradient are added over the ranks of an axis.
//   kRankOrder: every rank gets its part of each other rank in the dtype of the reduction, and one kernel adds them to
//   its own in fp32, in the order of the ranks, rounding after each addition. The same bits on every transport and on
//   host ranks.
//   kNccl: NCCL's reduce-scatter, in that dtype, in NCCL's order: other bits for other numbers of ranks, machines and
//   versions, and bf16 is added in bf16.
enum class Sum : uint8_t { kRankOrder, kNccl };
// "rank_order", "nccl"; "unknown" for what does not exist.
absl::string_view Name(Sum sum);

// Of one unit: how its weights are gathered, and how its gradients are exchanged.
struct UnitTransports {
  constexpr UnitTransports() = default;
  constexpr UnitTransports(Transport both) : gather(both), exchange(both) {}  // NOLINT(google-explicit-constructor)
  constexpr UnitTransports(Transport gather, Transport exchange) : gather(gather), exchange(exchange) {}

  Transport gather = Transport::kNccl;
  Transport exchange = Transport::kNccl;

  friend bool operator==(const UnitTransports&, const UnitTransports&) = default;
};

// The transports of units whose gathered copy has at least `unit_bytes`.
struct TransportChoice {
  int64_t unit_bytes = 0;
  UnitTransports transports = {};

  friend bool operator==(const TransportChoice&, const TransportChoice&) = default;
};
// The same for all units.
std::vector<TransportChoice> EveryUnit(UnitTransports transports);
// What a unit of so many gathered bytes gets: of the last choice that is for it, or else kNccl.
UnitTransports TransportsFor(const std::vector<TransportChoice>& choices, int64_t unit_bytes);

// "symmetric,4194304:copy_engine/symmetric": each with the bytes from which it is used, unless these are 0; gather and
// exchange where they differ. "auto" for none.
std::string ToText(const std::vector<TransportChoice>& choices);
// The same back. InvalidArgument for other text.
absl::StatusOr<std::vector<TransportChoice>> TransportChoicesFromText(absl::string_view text);

}  // namespace reprise

#endif  // REPRISE_CORE_TRANSPORT_H_
