// What each call of a model needs and makes, derived once from its declarations.
#ifndef REPRISE_CORE_PLANNER_MODEL_USES_H_
#define REPRISE_CORE_PLANNER_MODEL_USES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "reprise/core/model.h"

namespace reprise::internal {

struct CallUses {
  // Units whose gathered weights must be present, without repeats; units of no bytes are left out.
  std::vector<UnitId> forward_units, backward_units;
  std::vector<ParameterId> forward_parameters, backward_parameters;  // views that compute may ask for
  std::vector<TensorId> inputs, private_tensors;                     // without repeats
  // Filled for training only.
  bool backward = false;                         // a backward call is scheduled
  std::vector<ParameterId> parameter_gradients;  // written by backward
  std::vector<TensorId> input_gradients;         // written by backward
  std::vector<TensorId> output_gradients;        // read by backward
};

// What plans ask about gradients, by ParameterId.
struct ModelUses {
  std::vector<CallUses> calls;
  std::vector<bool> has_gradient;  // some backward call writes the parameter's gradient
};

// What forward needs.
ModelUses ForwardUses(const Model& model);

// That, and what backward needs: it starts at the loss and runs the calls in reverse, those that write something.
// InvalidArgument for the gradient errors that PlanTraining lists.
absl::StatusOr<ModelUses> TrainingUses(const Model& model);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_PLANNER_MODEL_USES_H_
