// Optimizers, applied to each rank's flat master shards by the step. The learning rate comes with each step.
#ifndef REPRISE_GRAPH_OPTIMIZERS_H_
#define REPRISE_GRAPH_OPTIMIZERS_H_

#include <variant>

namespace reprise {

struct AdamW {
  float beta1 = 0.9f, beta2 = 0.999f;
  float epsilon = 1e-8f;      // at least 1e-15
  float weight_decay = 0.0f;  // decoupled: master -= learning_rate * weight_decay * master
};
struct Sgd {
  float momentum = 0.0f;
  float weight_decay = 0.0f;  // added to the gradient
};
using Optimizer = std::variant<AdamW, Sgd>;
// fp32 values that it keeps per element.
int OptimizerStates(const Optimizer& optimizer);

}  // namespace reprise

#endif  // REPRISE_GRAPH_OPTIMIZERS_H_
