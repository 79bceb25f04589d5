#include "reprise/graph/optimizers.h"

#include "reprise/core/schedule.h"

namespace reprise {

int OptimizerStates(const Optimizer& optimizer) {
  return std::visit(Overloaded{
                        [](const AdamW&) { return 2; },
                        [](const Sgd& sgd) { return sgd.momentum != 0 ? 1 : 0; },
                    },
                    optimizer);
}

}  // namespace reprise
