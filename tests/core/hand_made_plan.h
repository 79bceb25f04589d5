// Plans with the structure of a training schedule, made without the planner: for tests of memory planning.
#ifndef REPRISE_TESTS_CORE_HAND_MADE_PLAN_H_
#define REPRISE_TESTS_CORE_HAND_MADE_PLAN_H_

#include <cstdint>
#include <functional>

#include "reprise/core/plan.h"

namespace reprise::testing {

struct HandMadeOptions {
  int calls = 4;
  int weight_slots = 2;
  int gradient_slots = 2;
  // Bytes of the next buffer.
  std::function<int64_t()> weights, reduce_buffer, received, activation, scratch;
};

// "first" and "body": one unit for each call; activations are kept from forward to backward; gathers wait for their
// slot; a reduce buffer for each unit. The copy of unit 0 stays from graph to graph: body reads it first and gathers it
// anew for its backward. Only buffers and schedules are filled.
Plan HandMadePlan(const HandMadeOptions& options);

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_CORE_HAND_MADE_PLAN_H_
