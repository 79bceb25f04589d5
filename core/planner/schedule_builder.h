// Collects the commands of one schedule in issue order and derives their waits from what they use.
#ifndef REPRISE_CORE_PLANNER_SCHEDULE_BUILDER_H_
#define REPRISE_CORE_PLANNER_SCHEDULE_BUILDER_H_

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "core/plan/happens_before.h"
#include "reprise/core/schedule.h"

namespace reprise::internal {

// Begin is added on construction, End by Finish.
//
// Waits are few: per command at most one for each other lane, none that lane order and earlier waits already imply. A
// wait's reason is the strongest requirement that nothing else meets (kData, kOrder, kFork, kJoin, in this order),
// later commands that rely on it included.
class ScheduleBuilder {
 public:
  ScheduleBuilder();

  // Adds a command. It follows every earlier command whose uses conflict with its own, and those in `after` (kOrder).
  CommandId Add(Command command, Lane lane, std::vector<BufferUse> uses, const std::vector<CommandId>& after = {});

  // Adds End and hands over the commands; the builder is spent.
  std::vector<ScheduledCommand> Finish();

 private:
  // By lane: the latest command that must come first; -1 for none.
  using Requirement = std::array<int32_t, kNumLanes>;
  static constexpr Requirement kNothing = {-1, -1, -1, -1};

  // Who touched a range of a buffer: the last command that wrote it, and on each lane the last that has read it since.
  // Whoever conflicts with an earlier one conflicts with the writer too.
  struct Touched {
    CommandId writer = {};
    std::array<CommandId, kNumLanes> readers = {};
  };
  using Ranges = std::map<int64_t, Touched>;  // by first byte; each ends where the next one starts

  // The range that starts at `offset`, split off if there is none.
  static Ranges::iterator CutAt(Ranges& ranges, int64_t offset);
  void Require(CommandId command, Requirement& requirement) const;
  // The same, unless the command is invalid or on `lane`, whose order it has anyway.
  void RequireFromOther(CommandId command, Lane lane, Requirement& requirement) const;
  // Adds to `data` what a use conflicts with, and remembers the use.
  void Track(CommandId id, Lane lane, const BufferUse& use, Requirement& data);
  // Waits for these requirements, by reason in the order of WaitReason.
  std::vector<Wait> Reduce(Lane lane, const std::array<Requirement, 4>& requirements);
  // A requirement that an earlier wait meets may depend on that wait alone: then its reason is at least `reason`.
  void Strengthen(Lane lane, int32_t command, Lane from, WaitReason reason);

  struct KeptWait {
    int32_t source, target;  // commands
    size_t index;            // in the target's waits
  };

  std::vector<ScheduledCommand> commands_;
  HappensBefore order_;
  std::array<bool, kNumLanes> forked_ = {};
  std::vector<Ranges> touched_;                                               // by buffer
  std::array<std::array<std::vector<KeptWait>, kNumLanes>, kNumLanes> kept_;  // [from][to], both ends ascending
};

}  // namespace reprise::internal

#endif  // REPRISE_CORE_PLANNER_SCHEDULE_BUILDER_H_
