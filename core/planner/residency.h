// Which gathers a schedule needs, into which weight slots, and how early each may be issued.
#ifndef REPRISE_CORE_PLANNER_RESIDENCY_H_
#define REPRISE_CORE_PLANNER_RESIDENCY_H_

#include <vector>

#include "reprise/core/plan.h"

namespace reprise::internal {

// One execution of compute, in order: the units whose weights it reads, without repeats.
struct WeightAccess {
  std::vector<UnitId> units;
  bool continues = false;  // Residency::kOff: of the same phase and microbatch as the access before
};

// One gathered copy of a unit. It is read by the accesses that need the unit from first_access on, until another copy
// takes its slot.
struct GatheredCopy {
  UnitId unit;
  int slot = 0;
  bool resident_at_start = false;  // not gathered here
  int first_access = -1;           // that needs it; -1 for a start resident that is never read
  int limit = -1;                  // access that the gather must not run ahead of; -1: none
  int last_access = -1;
  int previous = -1;     // copy that held the slot before; -1: none
  int issue_after = -1;  // the gather is issued once this access has been; -1: at the head
  bool kept = false;     // still in its slot after the last access
};

struct GatherPlan {
  std::vector<GatheredCopy> copies;             // start residents first, then in order of gathering
  std::vector<std::vector<int>> access_copies;  // per access and unit of it: index into copies
};

struct StartResident {
  UnitId unit;
  int slot = 0;
  friend bool operator==(const StartResident&, const StartResident&) = default;
};

struct GatherOptions {
  int num_units = 0;       // of the model
  int slots = 1;           // gathered copies that live at once
  int prefetch_depth = 1;  // PlanOptions::prefetch_depth
  Residency residency = Residency::kKeep;
};
// Every access must need at most `slots` units. With Residency::kKeep a gather evicts the copy whose next use is
// furthest, where the accesses are taken to repeat for ever (the least number of gathers for a given order, by
// Belady's rule), among those whose last reader does not delay the gather, if there is one; ties go to the highest unit
// id. With kOff a gather goes to the slot of its unit's old copy unless the last reader delays it, else to the slot
// whose last reader is earliest.
GatherPlan PlanGathers(const std::vector<WeightAccess>& accesses, const std::vector<StartResident>& start,
                       const GatherOptions& options);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_PLANNER_RESIDENCY_H_
