#include "graph/host/host_profile.h"

#include <chrono>

namespace reprise::internal {

double ReplayTimes::Now() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void HostProfile::Add(int replay, const HostRecording& recording, const ReplayTimes& times) {
  for (int rank = 0; rank < recording.ranks(); ++rank) {
    for (int c = 0; c < recording.commands(); ++c) {
      const Command& command = recording.schedule().commands[c].command;
      if (std::holds_alternative<Begin>(command) || std::holds_alternative<End>(command)) continue;
      if (recording.work[c][rank] == nullptr) continue;
      const ReplayTimes::Span& span = times.span(rank, c);
      timeline_.spans.push_back({.rank = recording.bindings->ranks[rank],
                                 .replay = replay,
                                 .schedule = recording.index,
                                 .command = CommandId(c),
                                 .start_us = span.start_us,
                                 .end_us = span.end_us});
    }
  }
}

}  // namespace reprise::internal
