// A moment until which something may take, on a clock that nobody sets.
#ifndef REPRISE_GRAPH_COMM_DEADLINE_H_
#define REPRISE_GRAPH_COMM_DEADLINE_H_

#include <algorithm>
#include <chrono>
#include <limits>

#include "absl/time/time.h"

namespace reprise::internal {

class Deadline {
 public:
  // absl::InfiniteDuration() never passes.
  explicit Deadline(absl::Duration from_now) : infinite_(from_now >= kLongest) {
    if (!infinite_) end_ = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(from_now);
  }

  absl::Duration left() const {
    return infinite_ ? absl::InfiniteDuration() : absl::FromChrono(end_ - std::chrono::steady_clock::now());
  }
  bool passed() const { return left() <= absl::ZeroDuration(); }
  Deadline OrAfter(absl::Duration from_now) const { return Deadline(std::min(left(), from_now)); }
  // For poll: milliseconds, rounded up so that nobody polls for no time at all.
  int poll_timeout() const {
    if (infinite_) return -1;
    constexpr int kHour = 3'600'000;  // poll's callers look at the deadline again
    const int64_t milliseconds = absl::ToInt64Milliseconds(left()) + 1;
    return static_cast<int>(std::clamp<int64_t>(milliseconds, 0, kHour));
  }

 private:
  // More than that overflows the clock.
  static constexpr absl::Duration kLongest = absl::Hours(24 * 365 * 100);

  bool infinite_;
  std::chrono::steady_clock::time_point end_ = {};
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_DEADLINE_H_
