#include "core/planner/residency.h"

#include <algorithm>
#include <set>
#include <utility>

namespace reprise::internal {
namespace {

class GatherPlanner {
 public:
  GatherPlanner(const std::vector<WeightAccess>& accesses, const GatherOptions& options)
      : accesses_(accesses),
        residency_(options.residency),
        limits_(accesses.size()),
        slot_copy_(options.slots, -1),
        unit_copy_(options.num_units, -1),
        uses_(options.num_units),
        uses_done_(options.num_units, 0) {
    for (size_t a = 0; a < accesses.size(); ++a) {
      for (UnitId unit : accesses[a].units) uses_[unit.value()].push_back(static_cast<int>(a));
    }
    std::vector<int> reading;
    for (size_t a = 0; a < accesses.size(); ++a) {
      // Below 0 nothing limits the gather, but the order of what comes before the graph stays.
      const int64_t limit = static_cast<int64_t>(reading.size()) - 1 - options.prefetch_depth;
      limits_[a] = limit >= 0 ? reading[limit] : limit;
      if (!accesses[a].units.empty()) reading.push_back(static_cast<int>(a));
    }
    for (int s = 0; s < options.slots; ++s) idle_.insert({-1, s});
  }

  GatherPlan Plan(const std::vector<StartResident>& start) {
    for (const StartResident& resident : start) {
      const int copy = Occupy(resident.unit, resident.slot);
      plan_.copies[copy].resident_at_start = true;
      Release(copy);
    }
    for (size_t a = 0; a < accesses_.size(); ++a) Visit(static_cast<int>(a));
    for (int copy : slot_copy_) {
      if (copy >= 0 && residency_ == Residency::kKeep) plan_.copies[copy].kept = true;
    }
    return std::move(plan_);
  }

 private:
  // Slots that the current access does not need, best victim first. kKeep: by next use, the furthest first (-1 sorts
  // an empty slot before all); kOff: by last access, the earliest first.
  using Idle = std::set<std::pair<int64_t, int>>;

  void Visit(int access) {
    const WeightAccess& current = accesses_[access];
    std::vector<int>& copies = plan_.access_copies.emplace_back();
    for (UnitId unit : current.units) copies.push_back(Claim(unit, access));
    for (size_t i = 0; i < copies.size(); ++i) {
      if (copies[i] < 0) copies[i] = Gather(current.units[i], access);
      GatheredCopy& copy = plan_.copies[copies[i]];
      if (copy.first_access < 0) copy.first_access = access;
      copy.last_access = access;
    }
    for (UnitId unit : current.units) ++uses_done_[unit.value()];
    for (int copy : copies) Release(copy);
  }

  // The unit's present copy if the access may use it, taken off the idle slots; else -1.
  int Claim(UnitId unit, int access) {
    const int copy = unit_copy_[unit.value()];
    if (copy < 0) return -1;
    const bool reusable =
        residency_ == Residency::kKeep || (accesses_[access].continues && plan_.copies[copy].last_access == access - 1);
    if (!reusable) return -1;
    idle_.erase(Key(copy));
    return copy;
  }

  int Gather(UnitId unit, int access) {
    int slot = -1;
    const int old = unit_copy_[unit.value()];
    if (residency_ == Residency::kOff && old >= 0 && !Delays(old, access)) {
      slot = plan_.copies[old].slot;
      idle_.erase(Key(old));
    } else {
      const auto victim = Victim(access);
      slot = victim->second;
      idle_.erase(victim);
    }
    const int index = Occupy(unit, slot);
    GatheredCopy& copy = plan_.copies[index];
    copy.limit = static_cast<int>(std::max<int64_t>(-1, limits_[access]));
    copy.issue_after = std::max(issued_, copy.limit);
    if (copy.previous >= 0) copy.issue_after = std::max(copy.issue_after, plan_.copies[copy.previous].last_access);
    issued_ = copy.issue_after;
    return index;
  }

  // The best victim whose last reader lets the gather run as early as the prefetch depth allows; else the best one. A
  // victim that compute has just read saves no gather where the accesses are a palindrome, and where they are not
  // (forward only) it would expose every gather.
  Idle::const_iterator Victim(int access) const {
    for (auto it = idle_.begin(); it != idle_.end(); ++it) {
      const int copy = slot_copy_[it->second];
      if (copy < 0 || !Delays(copy, access)) return it;
    }
    return idle_.begin();
  }

  // Whether a copy's last reader keeps a gather into its slot from running as early as the prefetch depth allows.
  bool Delays(int copy, int access) const { return plan_.copies[copy].last_access > limits_[access]; }

  // A new copy of `unit` in `slot`, whose idle entry is gone.
  int Occupy(UnitId unit, int slot) {
    const int index = static_cast<int>(plan_.copies.size());
    GatheredCopy& copy = plan_.copies.emplace_back();
    copy.unit = unit;
    copy.slot = slot;
    copy.previous = slot_copy_[slot];
    if (copy.previous < 0) {
      idle_.erase({-1, slot});
    } else if (int& present = unit_copy_[plan_.copies[copy.previous].unit.value()]; present == copy.previous) {
      present = -1;
    }
    slot_copy_[slot] = index;
    unit_copy_[unit.value()] = index;
    return index;
  }

  void Release(int copy) { idle_.insert(Key(copy)); }

  // The idle entry of a copy; the same from Release until the unit's next access.
  std::pair<int64_t, int> Key(int index) const {
    const GatheredCopy& copy = plan_.copies[index];
    if (residency_ == Residency::kOff) return {copy.last_access, copy.slot};
    const std::vector<int>& uses = uses_[copy.unit.value()];
    const size_t done = uses_done_[copy.unit.value()];
    const int64_t period = static_cast<int64_t>(accesses_.size());
    int64_t next = 2 * period;  // never: a resident that no access needs
    if (!uses.empty()) next = done < uses.size() ? uses[done] : period + uses[0];
    // One number that falls with the next use, then with the unit id, and stays above the -1 of empty slots.
    const int64_t units = static_cast<int64_t>(uses_.size());
    return {(2 * period + 1) * units - (next * units + copy.unit.value()), copy.slot};
  }

  const std::vector<WeightAccess>& accesses_;
  const Residency residency_;
  std::vector<int64_t> limits_;         // by access: the one that its gathers must not run ahead of; negative: none
  std::vector<int> slot_copy_;          // by slot: its present copy
  std::vector<int> unit_copy_;          // by unit: its present copy
  std::vector<std::vector<int>> uses_;  // by unit: accesses that need it
  std::vector<size_t> uses_done_;       // by unit: how many of these are past
  Idle idle_;
  int issued_ = -1;  // issue_after of the latest gather: the lane keeps the order of accesses
  GatherPlan plan_;
};

}  // namespace

GatherPlan PlanGathers(const std::vector<WeightAccess>& accesses, const std::vector<StartResident>& start,
                       const GatherOptions& options) {
  return GatherPlanner(accesses, options).Plan(start);
}

}  // namespace reprise::internal
