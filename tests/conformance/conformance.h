// What every world and execution must do, whatever the machine. The suites (ordering, collectives, accumulation,
// profile, replay_many, errors) are linked into a binary per kind of machine, which names its backends:
//
//   INSTANTIATE_TEST_SUITE_P(Host, ConformanceTest, ::testing::Values(Backend{...}), BackendName);
#ifndef REPRISE_TESTS_CONFORMANCE_CONFORMANCE_H_
#define REPRISE_TESTS_CONFORMANCE_CONFORMANCE_H_

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "reprise/core/compute.h"
#include "reprise/core/planner.h"
#include "reprise/graph/world.h"
#include "tests/conformance/plan_runner.h"

namespace reprise::testing {

struct Backend {
  std::string name;
  std::function<absl::StatusOr<std::shared_ptr<World>>()> new_world;  // of any size
  Execution execution = Execution::kGraph;
};
inline void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }
inline std::string BackendName(const ::testing::TestParamInfo<Backend>& info) { return info.param.name; }

// A classifier of kernels alone, so that it runs everywhere: y = relu(x w^T) per unit, then cross-entropy over y.
struct Classifier {
  Model model;
  ComputeTable compute;
  TensorId x, labels, loss;
  std::vector<ParameterId> weights;
};
inline constexpr int64_t kClassifierWidth = 16;  // of every layer, and so the number of classes
inline constexpr int64_t kClassifierRows = 8;
Classifier MakeClassifier(int units, DType dtype);
// Values for PlanRunner: whole numbers and fractions that bfloat16 holds exactly.
float ClassifierParameter(ParameterId parameter, int64_t element);
double ClassifierInput(int rank, int64_t microbatch, TensorId tensor, int64_t element);

// Linear maps of these widths, a unit each, in fp32, then cross-entropy over kChainRows rows.
struct LinearChain {
  Model model;
  ComputeTable compute;
  TensorId x, labels;
};
inline constexpr int64_t kChainRows = 8;
LinearChain MakeLinearChain(const std::vector<int64_t>& widths);

class ConformanceTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override;

  absl::StatusOr<std::unique_ptr<PlanRunner>> NewRunner(const Plan& plan, const ComputeTable& compute,
                                                        const ParameterValue& parameters,
                                                        Optimizer optimizer = AdamW{}) const;
  // What `steps` steps of a classifier leave in its masters and optimizer state, on the local ranks.
  absl::StatusOr<std::string> Train(const Classifier& classifier, const PlanOptions& options, int microbatches,
                                    int steps) const;
  // The first error of recording or replaying the first graph of a classifier's training plan.
  absl::Status RunOnce(const Classifier& classifier) const;
  int ranks() const { return world_->size(); }

  std::shared_ptr<World> world_;
};

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_CONFORMANCE_CONFORMANCE_H_
