// Votes on plans. Where ranks disagree, all of them say what differs first, on which ranks, and both sides.
#ifndef REPRISE_GRAPH_AGREE_ON_PLAN_H_
#define REPRISE_GRAPH_AGREE_ON_PLAN_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/plan/plan_facts.h"
#include "graph/machine.h"
#include "graph/session_core.h"
#include "reprise/core/plan.h"

namespace reprise::internal {

// "recording of variant "x"", or without a variant "recording": the phase that a vote names.
std::string PhaseOf(absl::string_view phase, absl::string_view variant);

// (c) A vote: OK if every rank's status is OK and all fingerprints are equal, otherwise FailedPrecondition. `facts` is
// what the fingerprint stands for, and is called on all ranks if the fingerprints differ; not called, nor the
// fingerprint looked at, where `mine` is an error. Then three exchanges, which carry hashes of blocks of facts, hashes
// of one block's facts, and one fact, find the first fact that differs.
absl::Status AgreeOnFacts(Machine& world, absl::string_view phase, const absl::Status& mine,
                          const Fingerprint& fingerprint, absl::FunctionRef<std::vector<Fact>()> facts);

// (c) The same for a plan, and for what a session is made of: its plan and the values that are baked into it.
absl::Status AgreeOnPlan(Machine& world, absl::string_view phase, const absl::Status& mine, const Plan& plan);
absl::Status AgreeOnPlan(Machine& world, const absl::StatusOr<CoreInputs>& inputs);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_AGREE_ON_PLAN_H_
