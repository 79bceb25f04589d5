// Buffers of ShardedParameters: the same in every plan on the same units, parameters, world size and master dtype.
#ifndef REPRISE_CORE_PLAN_PERSISTENT_BUFFERS_H_
#define REPRISE_CORE_PLAN_PERSISTENT_BUFFERS_H_

#include <array>
#include <vector>

#include "reprise/core/layout.h"
#include "reprise/core/plan.h"

namespace reprise::internal {

// The first buffers of every plan: weights and masters of each unit and group, with their final offsets. Only
// UnitBuffers::weights and masters are filled.
struct ParameterBuffers {
  std::vector<Buffer> buffers;
  std::vector<UnitBuffers> units;
  std::array<int64_t, kNumStorages> num_bytes = {};  // of kWeights and kMasters
};
ParameterBuffers PlanParameterBuffers(const Model& model, const ModelLayout& layout, DType master);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_PLAN_PERSISTENT_BUFFERS_H_
