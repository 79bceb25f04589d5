// Schedules whose commands are other than the planner has put them, for tests of what that breaks.
#ifndef REPRISE_TESTS_TESTING_REARRANGED_SCHEDULE_H_
#define REPRISE_TESTS_TESTING_REARRANGED_SCHEDULE_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "reprise/core/plan.h"

namespace reprise::testing {

// A schedule whose commands change places; Finish makes waits follow the commands that they name.
class Rearranged {
 public:
  explicit Rearranged(Schedule& schedule) : schedule_(schedule) {
    for (size_t i = 0; i < schedule.commands.size(); ++i) commands_.push_back({schedule.commands[i], i});
  }

  void Drop(size_t at) { commands_.erase(commands_.begin() + static_cast<std::ptrdiff_t>(at)); }
  void Double(size_t at, size_t to) {
    commands_.insert(commands_.begin() + static_cast<std::ptrdiff_t>(to), Entry(commands_[at]));
  }
  void Swap(size_t a, size_t b) { std::swap(commands_[a], commands_[b]); }

  void Finish();

 private:
  struct Entry {
    ScheduledCommand command;
    size_t was = 0;
  };

  Schedule& schedule_;
  std::vector<Entry> commands_;
};

// Derives the waits of a schedule of the plan and all places in memory again from what the commands use, by the
// planner's own means; waits for limits are kept where they name an earlier command. Does nothing if uses of the
// plan lie outside their buffers, or a schedule has no Begin or End.
void DeriveWaits(Plan& plan, Schedule& schedule);

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_TESTING_REARRANGED_SCHEDULE_H_
