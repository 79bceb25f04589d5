// Which commands of a schedule are ordered by lanes and waits: vector clocks over the lanes.
#ifndef REPRISE_CORE_PLAN_HAPPENS_BEFORE_H_
#define REPRISE_CORE_PLAN_HAPPENS_BEFORE_H_

#include <array>
#include <vector>

#include "reprise/core/schedule.h"

namespace reprise::internal {

// For each lane, the id of its last command that has completed; -1 if none has.
using Clock = std::array<int32_t, kNumLanes>;

// Clocks of the commands added so far, which must be added in issue order.
class HappensBefore {
 public:
  // The clock just before a command that would be issued next on `lane` without waits.
  const Clock& Tail(Lane lane) const { return tails_[static_cast<int>(lane)]; }
  // Adds the next command with these waits. Its id is the number of commands added before.
  void Add(Lane lane, const std::vector<Wait>& waits);

  // Is `earlier` complete before `later` starts in every legal order?
  bool Ordered(CommandId earlier, CommandId later) const {
    return starts_[later.value()][static_cast<int>(lanes_[earlier.value()])] >= earlier.value();
  }
  // The clock at the start of a command: what is complete by then.
  const Clock& Start(CommandId command) const { return starts_[command.value()]; }
  // The clock at its end: the same, and the command itself.
  const Clock& End(CommandId command) const { return ends_[command.value()]; }

 private:
  std::vector<Lane> lanes_;
  std::vector<Clock> starts_, ends_;
  std::array<Clock, kNumLanes> tails_ = {Clock{-1, -1, -1, -1}, Clock{-1, -1, -1, -1}, Clock{-1, -1, -1, -1},
                                         Clock{-1, -1, -1, -1}};
};

}  // namespace reprise::internal

#endif  // REPRISE_CORE_PLAN_HAPPENS_BEFORE_H_
