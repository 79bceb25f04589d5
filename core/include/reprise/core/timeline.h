// When the commands of replays ran: measured on devices or on the host, or predicted from a cost model. One form for
// all, so that they can be compared and opened side by side.
//
// Times are microseconds from the start of the timeline, the same for all ranks.
#ifndef REPRISE_CORE_TIMELINE_H_
#define REPRISE_CORE_TIMELINE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "reprise/core/plan.h"

namespace reprise {

// A kernel, copy or fill that a command enqueued; devices only.
enum class ActivityKind : uint8_t { kKernel, kCopy, kFill };
absl::string_view Name(ActivityKind kind);  // "kernel"
struct Activity {
  ActivityKind kind = ActivityKind::kKernel;
  std::string name = {};  // the kernel's; empty for copies and fills
  int64_t stream = 0;     // as the device numbers them
  double start_us = 0, end_us = 0;
  int64_t num_bytes = 0;  // of copies and fills
  friend bool operator==(const Activity&, const Activity&) = default;
};

// One command of one replay on one rank. A command without work, such as a join, has none.
struct CommandSpan {
  int rank = 0;
  int replay = 0;    // in launch order, from 0
  int schedule = 0;  // index into Plan::schedules
  CommandId command;
  double start_us = 0, end_us = 0;  // of its first and last activity, where it has them
  std::vector<Activity> activities = {};
  friend bool operator==(const CommandSpan&, const CommandSpan&) = default;
};

// Of replays of one plan.
struct Timeline {
  std::vector<CommandSpan> spans = {};  // by rank, replay and command
  friend bool operator==(const Timeline&, const Timeline&) = default;
};

// Bytes that a command of the plan moves between ranks, per rank: what an all-gather receives from the others, what a
// reduce-scatter or an exchange sends to them, padding included; 0 for other commands.
int64_t TransferredBytes(const Plan& plan, const Command& command);

// What there is to know about a trace, each with a key.
using TraceNotes = std::vector<std::pair<std::string, std::string>>;

// Chrome's trace format, which Perfetto opens: a process per rank, in it a track per lane with one slice per command
// and within it one per activity; activities of a lane that overlap get more tracks. The name of each slice is the
// command's as in the plan's text; its arguments say schedule, replay, command and, of a collective, bytes. `title`
// names the processes: "measured", "predicted"; `about` is kept as the trace's otherData. InvalidArgument if a span is
// of no command or rank of the plan, or its times are not in order.
absl::StatusOr<std::string> ToChromeTrace(const Plan& plan, const Timeline& timeline, absl::string_view title,
                                          const TraceNotes& about = {});

// For files and for exchange between ranks: the fields as JSON, in the order of the spans.
std::string ToJson(const Timeline& timeline);
// InvalidArgument, saying where and what is wrong with the text, or that it holds more than 2^22 spans or what takes 8
// GiB to read.
absl::StatusOr<Timeline> TimelineFromJson(absl::string_view json);

}  // namespace reprise

#endif  // REPRISE_CORE_TIMELINE_H_
