// Plans with one thing wrong, or at least other than the planner has made it.
#ifndef REPRISE_TESTS_GRAPH_PLAN_MUTATIONS_H_
#define REPRISE_TESTS_GRAPH_PLAN_MUTATIONS_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "reprise/core/plan.h"
#include "tests/testing/random_model.h"

namespace reprise::testing {

enum class MutationKind : uint8_t {
  kDropCommand,
  kDoubleCommand,
  kSwapCommands,  // anywhere in a schedule
  kMoveCommand,   // the same
  kSwapFields,    // of two commands of a kind: each keeps its uses
  kSwapUses,      // of two commands of a kind: each keeps its fields
  kCommandField,
  kUseField,
  kDropUse,
  kDoubleUse,
  kOtherBuffer,    // for one use that of another
  kSwapBuffers,    // of two uses of a command
  kRenameBuffers,  // two exchanged in all uses of a schedule
  kDropWait,
  kAddWait,
  kAnyField,  // of all that is in the plan and decided by the planner
};
inline constexpr int kNumMutationKinds = 16;
absl::string_view Name(MutationKind kind);

// Changes the plan in one place. Mostly waits and places in memory are then derived again from what the commands use,
// by the planner's own means, so that nothing but the change itself is wrong. Neither the model nor the policies nor
// the layout change.
void Mutate(MutationKind kind, Random& random, Plan& plan);

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_PLAN_MUTATIONS_H_
