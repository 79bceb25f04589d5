// How much of the communication of a timeline is hidden behind compute, and why the rest is not.
#ifndef REPRISE_CORE_OVERLAP_H_
#define REPRISE_CORE_OVERLAP_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "reprise/core/plan.h"
#include "reprise/core/timeline.h"

namespace reprise {

// Why a command's communication is exposed.
//   kFirstGather: an all-gather that the first compute command of its graph waits for, directly or through others.
//   kLastReduction: a reduce-scatter that waits for the last compute command of its graph, directly or through others,
//     or whose graph has none (`finish`).
//   kOther: every other all-gather and reduce-scatter, and the norm's sum over ranks.
// Compute commands are Forward and Backward; the first and the last of a graph are so in issue order.
enum class ExposedCause : uint8_t { kFirstGather, kLastReduction, kOther };
inline constexpr int kNumExposedCauses = 3;
absl::string_view Name(ExposedCause cause);  // "first_gather"

// The fraction of its time that compute must cover for a collective to count as overlapped.
inline constexpr double kOverlappedFraction = 0.9;

// A collective command of a timeline.
struct CommunicationSpan {
  int rank = 0, replay = 0, schedule = 0;
  CommandId command;
  double start_us = 0, end_us = 0;
  // While compute commands of the same rank ran: their activities, where they have some, otherwise their spans.
  double covered_us = 0;
  ExposedCause cause = ExposedCause::kOther;

  double duration_us() const { return end_us - start_us; }
  double covered_fraction() const { return duration_us() > 0 ? covered_us / duration_us() : 1; }
  bool overlapped() const { return covered_fraction() >= kOverlappedFraction; }
};

struct RankOverlap {
  int rank = 0;
  double duration_us = 0;       // from the first start to the last end of any command
  double compute_us = 0;        // during which compute commands ran
  double communication_us = 0;  // during which collectives ran
  // By cause: during which collectives ran and no compute did. A moment counts once, for the cause listed first.
  std::array<double, kNumExposedCauses> exposed_us = {};

  double exposed_total_us() const { return exposed_us[0] + exposed_us[1] + exposed_us[2]; }
};

struct OverlapReport {
  std::vector<CommunicationSpan> communication = {};  // in the order of the timeline: by rank, replay and command
  std::vector<RankOverlap> ranks = {};                // by rank
};

// InvalidArgument if a span is of no command or rank of the plan, its times are not in order, or a wait of the plan
// names no earlier command.
absl::StatusOr<OverlapReport> AnalyzeOverlap(const Plan& plan, const Timeline& timeline);

// Tables of at most 110 columns: one line per rank (duration, compute, exposed communication by cause, in microseconds
// and as a percentage of the duration), then one per collective of the first rank (bytes, duration, bytes per second,
// covered fraction, cause). The report must be of the plan.
std::string ToText(const Plan& plan, const OverlapReport& report);
// The same figures of all ranks.
std::string ToJson(const Plan& plan, const OverlapReport& report);

}  // namespace reprise

#endif  // REPRISE_CORE_OVERLAP_H_
