// Violations in tests: how they print, and the check that fails without a wait.
#ifndef REPRISE_TESTING_VIOLATIONS_H_
#define REPRISE_TESTING_VIOLATIONS_H_

#include <ostream>

#include "reprise/core/verifier.h"

namespace reprise {

inline void PrintTo(const Violation& violation, std::ostream* out) {
  *out << Name(violation.check) << " in \"" << violation.schedule << "\": " << violation.message;
}

namespace testing {

// The check that a wait with this reason is for.
inline Check CheckOf(WaitReason reason) {
  switch (reason) {
    case WaitReason::kData:
      return Check::kData;
    case WaitReason::kOrder:
      return Check::kOrder;
    case WaitReason::kFork:
      return Check::kFork;
    case WaitReason::kJoin:
      return Check::kJoin;
  }
  return Check::kForm;
}

}  // namespace testing
}  // namespace reprise

#endif  // REPRISE_TESTING_VIOLATIONS_H_
