// Proof that a plan is safe to record, from its data alone. Shares no code with the planner: it would otherwise repeat
// the planner's mistakes. What calls read and write is taken as it is declared, not compared with the model.
#ifndef REPRISE_CORE_VERIFIER_H_
#define REPRISE_CORE_VERIFIER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "reprise/core/plan.h"

namespace reprise {

// What is proved, in this order:
//   kForm:    ids in range, waits name earlier commands, Begin first and End last on the compute lane, each
//             communicator's commands on one lane, uses inside their buffers, buffers inside their storage,
//             values of enumerations that exist, sizes that are not negative and whose sums fit an int64; every
//             reduction accumulated once, at its microbatch, with partial norms of each group in a place of its own;
//             every command of a unit has the transport that the options give the unit.
//   kData:    every pair of conflicting uses of one buffer is ordered; every read finds its bytes written.
//   kOrder:   slots hold one copy at a time; no gather runs ahead of the prefetch depth.
//   kFork:    every lane's first command follows Begin.
//   kJoin:    End follows every lane's last command.
//   kMemory:  buffers whose lives are not ordered share no byte.
//   kSuccession: every graph that may follow another starts from the state that the other ends with.
//   kMeaning: a step does what the model says, see below.
enum class Check : uint8_t { kForm, kData, kOrder, kFork, kJoin, kMemory, kSuccession, kMeaning };
absl::string_view Name(Check check);

struct Violation {
  Check check = Check::kForm;
  std::string schedule;  // name; empty for the plan as a whole
  std::string message;   // names the commands and buffers
};

// All checks, on any plan whatever its numbers are, at most one violation each, in order. kForm stops the rest.
// Those up to kSuccession make sense of a plan that is not whole, as one of a single schedule.
std::vector<Violation> FindViolations(const Plan& plan, Check last = Check::kMeaning);

// OK, or Internal with the first violation.
absl::Status Verify(const Plan& plan);

}  // namespace reprise

#endif  // REPRISE_CORE_VERIFIER_H_
