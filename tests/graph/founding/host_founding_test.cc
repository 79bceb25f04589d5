// The founding tests on host ranks.
#include "reprise/graph/host_world.h"
#include "tests/graph/founding/founding.h"

namespace reprise::testing {
namespace {

Backend Ranks(std::string name, int size, ReplayOrder order, Execution execution) {
  return {std::move(name), [=] { return CreateHostWorld({.size = size, .order = order, .seed = 3}); }, execution};
}

INSTANTIATE_TEST_SUITE_P(Host, FoundingTest,
                         ::testing::Values(Ranks("OneRank", 1, ReplayOrder::kIssue, Execution::kGraph),
                                           Ranks("TwoRanks", 2, ReplayOrder::kIssue, Execution::kGraph),
                                           Ranks("TwoRanksEager", 2, ReplayOrder::kIssue, Execution::kEager),
                                           Ranks("TwoRanksInAnyOrder", 2, ReplayOrder::kAdversarial, Execution::kGraph),
                                           Ranks("FourRanks", 4, ReplayOrder::kIssue, Execution::kGraph)),
                         BackendName);

}  // namespace
}  // namespace reprise::testing
