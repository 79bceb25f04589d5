// Who occupies the slots of a schedule, in order.
#ifndef REPRISE_CORE_VERIFIER_SLOTS_H_
#define REPRISE_CORE_VERIFIER_SLOTS_H_

#include <map>
#include <vector>

#include "core/verifier/schedule.h"

namespace reprise::internal {

// What was in each slot, in order, of the slots that anything was in.
template <class T>
using Slots = std::map<int, std::vector<T>>;

// A gathered copy in a weight slot.
struct Copy {
  UnitId unit;
  BufferId buffer;              // invalid if the unit has no weights
  CommandId gather = {};        // invalid: the schedule starts with it
  CommandId first_reader = {};  // of its parameters
  LaneCommands last_readers = {};
};

// In issue order of the gathers.
Slots<Copy> WeightSlots(const CheckedSchedule& schedule);

// A reduce buffer in a gradient slot.
struct ReduceBuffer {
  UnitId unit;
  BufferId buffer;
  CommandId first_writer;  // invalid: the schedule starts with it
  CommandId reduce;        // invalid: the schedule ends with it
  CommandId last_reader;   // the reduction, or the sum that reads a rank's own part after it
};

// In issue order of the first writers. Gradients reduced from persistent buffers take no slot.
Slots<ReduceBuffer> GradientSlots(const CheckedSchedule& schedule);

// The buffer that an all-gather assigns; invalid if it assigns none.
BufferId GatheredBuffer(const ScheduledCommand& gather);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_VERIFIER_SLOTS_H_
