// Random valid models for property tests.
#ifndef REPRISE_TESTS_TESTING_RANDOM_MODEL_H_
#define REPRISE_TESTS_TESTING_RANDOM_MODEL_H_

#include <cstdint>

#include "reprise/core/model.h"
#include "reprise/core/plan.h"

namespace reprise::testing {

// SplitMix64: the same numbers with every compiler and standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // 0 to bound - 1. `bound` is positive.
  int64_t Below(int64_t bound) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(bound)); }
  bool Chance(int percent) { return Below(100) < percent; }
  // 1 to bound, small numbers as often as large ones.
  int64_t Size(int64_t bound);

 private:
  uint64_t state_;
};

struct RandomModelOptions {
  int max_units = 12;             // at least 1
  int64_t max_bytes = 64 * 1024;  // of one parameter or tensor; at least 4
};

// A model that can be trained: every trainable parameter and every activation has a path to the loss over
// floating-point tensors. Over the seeds it has odd shapes, parameters of one element and of none, both dtypes in one
// unit, frozen parameters, parameter ids that are not in unit order, units named by several calls, tied parameters,
// calls without a unit and with several, forward-only units, private tensors, recomputation, residuals over any
// distance, integer inputs, kept input gradients, outputs that nothing reads, and scratch. No state, nothing external.
Model RandomModel(uint64_t seed, const RandomModelOptions& options = {});

// Options of training that every such model can be planned with: weight slots are the planner's choice.
PlanOptions RandomPlanOptions(Random& random);

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_TESTING_RANDOM_MODEL_H_
