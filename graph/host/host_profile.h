// Times of host replays.
#ifndef REPRISE_GRAPH_HOST_HOST_PROFILE_H_
#define REPRISE_GRAPH_HOST_HOST_PROFILE_H_

#include <vector>

#include "graph/host/host_recording.h"
#include "reprise/core/plan.h"
#include "reprise/core/timeline.h"

namespace reprise::internal {

// When the commands of one replay began and ended, by rank. Threads may call it at once for different commands or
// ranks.
class ReplayTimes {
 public:
  ReplayTimes() = default;  // nobody asks: looks at no clock
  explicit ReplayTimes(const HostRecording& recording)
      : commands_(recording.commands()), spans_(static_cast<size_t>(recording.ranks()) * commands_) {}

  void Begin(int rank, int command) {
    if (commands_ > 0) At(rank, command).start_us = Now();
  }
  void End(int rank, int command) {
    if (commands_ > 0) At(rank, command).end_us = Now();
  }

  struct Span {
    double start_us = 0, end_us = 0;  // since a moment that is the same for all processes of this host
  };
  const Span& span(int rank, int command) const { return spans_[static_cast<size_t>(rank) * commands_ + command]; }

 private:
  static double Now();
  Span& At(int rank, int command) { return spans_[static_cast<size_t>(rank) * commands_ + command]; }

  const int commands_ = 0;
  std::vector<Span> spans_;  // by rank and command
};

// The timed replays of one plan. Not thread-safe.
class HostProfile {
 public:
  explicit HostProfile(const Fingerprint& fingerprint) : fingerprint_(fingerprint) {}

  bool IsOf(const Plan& plan) const { return plan.fingerprint == fingerprint_; }
  // The number of a replay that starts now.
  int StartReplay() { return replays_++; }
  // Spans of all commands with work. In an eager recording every command but Begin and End has some.
  void Add(int replay, const HostRecording& recording, const ReplayTimes& times);

  const Timeline& timeline() const { return timeline_; }

 private:
  const Fingerprint fingerprint_;
  int replays_ = 0;
  Timeline timeline_;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_HOST_HOST_PROFILE_H_
