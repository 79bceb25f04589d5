// The tests of the founding system, for every world and execution. The suites are linked into a binary per kind of
// machine, which names its backends:
//
//   INSTANTIATE_TEST_SUITE_P(Host, FoundingTest, ::testing::Values(Backend{...}), BackendName);
#ifndef REPRISE_TESTS_GRAPH_FOUNDING_FOUNDING_H_
#define REPRISE_TESTS_GRAPH_FOUNDING_FOUNDING_H_

#include "tests/conformance/conformance.h"
#include "tests/graph/chain_training.h"

namespace reprise::testing {

class FoundingTest : public ConformanceTest {
 protected:
  TrainOptions Options(const PlanOptions& plan = {}, Optimizer optimizer = Sgd{}) const {
    TrainOptions options;
    options.run.plan = plan;
    options.run.execution = GetParam().execution;
    options.optimizer = optimizer;
    return options;
  }
};

// 8 -> 16 -> 4 with a ReLU between.
inline ChainSpec Mlp() {
  return {.name = "Mlp",
          .parameters = {{"w0", "fc1", {16, 8}}, {"w1", "fc2", {4, 16}}},
          .calls = {{.kind = ChainCall::Kind::kLinearRelu, .weight = "w0", .whole_unit = true},
                    {.kind = ChainCall::Kind::kLinear, .weight = "w1", .whole_unit = true}},
          .rows = 4,
          .width = 8};
}

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_FOUNDING_FOUNDING_H_
