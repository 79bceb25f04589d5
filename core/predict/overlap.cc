#include "reprise/core/overlap.h"

#include <algorithm>
#include <map>

#include "core/plan/happens_before.h"
#include "core/planner/memory/intervals.h"
#include "core/predict/timeline_checks.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

using internal::Interval;
using internal::Intervals;

bool IsCompute(const Command& command) {
  return std::holds_alternative<Forward>(command) || std::holds_alternative<Backward>(command);
}

// By command; of use for collectives.
std::vector<ExposedCause> CausesOf(const Schedule& schedule) {
  internal::HappensBefore order;
  CommandId first, last;  // that compute
  for (size_t c = 0; c < schedule.commands.size(); ++c) {
    order.Add(schedule.commands[c].lane, schedule.commands[c].waits);
    if (!IsCompute(schedule.commands[c].command)) continue;
    last = CommandId(static_cast<int64_t>(c));
    if (!first.valid()) first = last;
  }
  std::vector<ExposedCause> causes(schedule.commands.size(), ExposedCause::kOther);
  for (size_t c = 0; c < causes.size(); ++c) {
    const CommandId id(static_cast<int64_t>(c));
    const Command& command = schedule.commands[c].command;
    if (std::holds_alternative<AllGather>(command) && first.valid() && order.Ordered(id, first)) {
      causes[c] = ExposedCause::kFirstGather;
    }
    if (std::holds_alternative<ReduceScatter>(command) && (!last.valid() || order.Ordered(last, id))) {
      causes[c] = ExposedCause::kLastReduction;
    }
  }
  return causes;
}

// What ran when on one rank.
struct RankIntervals {
  std::vector<Interval> all, compute;
  std::array<std::vector<Interval>, kNumExposedCauses> communication;  // by cause
};

void AddCompute(const CommandSpan& span, std::vector<Interval>& compute) {
  if (span.activities.empty()) compute.push_back({span.start_us, span.end_us});
  for (const Activity& activity : span.activities) compute.push_back({activity.start_us, activity.end_us});
}

RankOverlap OverlapOf(int rank, const RankIntervals& intervals, const Intervals& compute) {
  RankOverlap overlap = {.rank = rank, .compute_us = internal::Length(compute)};
  double start = intervals.all.front().start, end = intervals.all.front().end;
  for (const Interval& interval : intervals.all) {
    start = std::min(start, interval.start);
    end = std::max(end, interval.end);
  }
  overlap.duration_us = end - start;
  std::vector<Interval> communication;
  Intervals counted = compute;
  for (int cause = 0; cause < kNumExposedCauses; ++cause) {
    const std::vector<Interval>& parts = intervals.communication[cause];
    communication.insert(communication.end(), parts.begin(), parts.end());
    overlap.exposed_us[cause] = internal::Length(internal::Subtract(internal::Union(parts), counted));
    counted.insert(counted.end(), parts.begin(), parts.end());
    counted = internal::Union(std::move(counted));
  }
  overlap.communication_us = internal::Length(internal::Union(std::move(communication)));
  return overlap;
}

}  // namespace

absl::StatusOr<OverlapReport> AnalyzeOverlap(const Plan& plan, const Timeline& timeline) {
  REPRISE_RETURN_IF_ERROR(internal::CheckTimeline(plan, timeline));
  std::vector<std::vector<ExposedCause>> causes;  // by schedule and command
  for (const Schedule& schedule : plan.schedules) {
    REPRISE_RETURN_IF_ERROR(internal::CheckOrder(schedule));
    causes.push_back(CausesOf(schedule));
  }
  OverlapReport report;
  std::map<int, RankIntervals> ranks;
  for (const CommandSpan& span : timeline.spans) {
    RankIntervals& rank = ranks[span.rank];
    rank.all.push_back({span.start_us, span.end_us});
    const Command& command = plan.schedules[span.schedule].commands[span.command.value()].command;
    if (IsCompute(command)) AddCompute(span, rank.compute);
    if (!IsCollective(command)) continue;
    const ExposedCause cause = causes[span.schedule][span.command.value()];
    rank.communication[static_cast<int>(cause)].push_back({span.start_us, span.end_us});
    report.communication.push_back({.rank = span.rank,
                                    .replay = span.replay,
                                    .schedule = span.schedule,
                                    .command = span.command,
                                    .start_us = span.start_us,
                                    .end_us = span.end_us,
                                    .cause = cause});
  }
  std::map<int, Intervals> compute;
  for (const auto& [rank, intervals] : ranks) {
    compute[rank] = internal::Union(intervals.compute);
    report.ranks.push_back(OverlapOf(rank, intervals, compute[rank]));
  }
  for (CommunicationSpan& span : report.communication) {
    span.covered_us = internal::LengthWithin(compute[span.rank], {span.start_us, span.end_us});
  }
  return report;
}

}  // namespace reprise
