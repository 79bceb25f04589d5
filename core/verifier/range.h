// Whether a number of a plan names something.
#ifndef REPRISE_CORE_VERIFIER_RANGE_H_
#define REPRISE_CORE_VERIFIER_RANGE_H_

#include <cstdint>

#include "reprise/core/ids.h"

namespace reprise::internal {

inline bool InRange(int64_t value, int64_t size) { return value >= 0 && value < size; }
template <class Tag, class List>
bool InRange(Id<Tag> id, const List& list) {
  return InRange(id.value(), static_cast<int64_t>(list.size()));
}
template <class Enum>
bool IsKnown(Enum value, Enum last) {
  return value <= last;
}

}  // namespace reprise::internal

#endif  // REPRISE_CORE_VERIFIER_RANGE_H_
