// What happens where ranks make different calls, or the same ones with other values: written once, for ranks that are
// processes, on the host and on devices.
#ifndef REPRISE_TESTS_GRAPH_RANKS_DIFFER_H_
#define REPRISE_TESTS_GRAPH_RANKS_DIFFER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "reprise/graph/world.h"

namespace reprise::testing {

// (c) By the executable that runs these tests: this process's rank in a new world, with a deadline much longer than
// kSoon.
absl::StatusOr<std::shared_ptr<World>> NewWorldOfProcesses();

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_RANKS_DIFFER_H_
