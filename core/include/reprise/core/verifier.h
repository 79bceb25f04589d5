// Proof that a plan is safe to record and does what its model says. Shares no code with the planner: it would otherwise
// repeat the planner's mistakes.
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
//             values of enumerations that exist, sizes that are not negative and whose sums fit an int64; the layout is
//             the model's; every command of a unit has the transport and the sum that the options give the unit.
//   kData:    every pair of conflicting uses of one buffer is ordered; every read finds its bytes written.
//   kOrder:   slots hold one copy at a time; no gather runs ahead of the prefetch depth.
//   kFork:    every lane's first command follows Begin.
//   kJoin:    End follows every lane's last command.
//   kMemory:  buffers whose lives are not ordered share no byte.
//   kSuccession: every graph that may follow another starts from the state that the other ends with.
//   kMeaning: every command has the uses that its fields and the model ask for, of those sizes, and each of them holds
//             what the model says that it reads: this microbatch's tensors and gradients, with all terms so far in
//             their order, its unit's weights, sums and optimizer states; and every schedule leaves what the next one,
//             or whoever reads afterwards, must find. So weights, masters, optimizer state, sums, norm, loss, counters
//             and metrics after any succession of microbatches and steps are those of the model.
// Not proved: that compute functions and kernels do what their command declares, that the planner's options are those
// that the caller wanted, and that communication is hidden.
enum class Check : uint8_t { kForm, kData, kOrder, kFork, kJoin, kMemory, kSuccession, kMeaning };
absl::string_view Name(Check check);

struct Violation {
  Check check = Check::kForm;
  std::string schedule;  // name; empty for the plan as a whole
  std::string message;   // names the commands and buffers
};

// All checks up to `last`, on any plan whatever its numbers are, at most one violation each, in order. kForm stops the
// rest. All but kMeaning make sense of a plan that is not whole, as one without a step. Takes n log n in uses.
std::vector<Violation> FindViolations(const Plan& plan, Check last = Check::kMeaning);

// OK, or Internal with the first violation.
absl::Status Verify(const Plan& plan);

}  // namespace reprise

#endif  // REPRISE_CORE_VERIFIER_H_
