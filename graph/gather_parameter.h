// Whole parameters from the ranks' shards.
#ifndef REPRISE_GRAPH_GATHER_PARAMETER_H_
#define REPRISE_GRAPH_GATHER_PARAMETER_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "graph/machine.h"
#include "reprise/core/layout.h"
#include "reprise/core/model.h"

namespace reprise::internal {

// (c) The parameter in row-major order, for the call `what` on `object`, which must be the same on all ranks:
// FailedPrecondition, with both, if it is not. `shards` holds each local rank's shard of the parameter's
// group, in `dtype`.
absl::StatusOr<std::vector<float>> GatherParameter(Machine& world, absl::string_view what, const std::string& object,
                                                   const Model& model, const ModelLayout& layout, ParameterId parameter,
                                                   DType dtype, absl::Span<const std::byte* const> shards);
// (c) Takes part in it with nothing, where this rank's arguments are wrong, so that the others do not wait for it.
// Returns `refusal`.
absl::Status RefuseToGather(Machine& world, absl::string_view what, const absl::Status& refusal);

// Host memory to host memory, rounded to nearest even.
absl::Status CastOnHost(DType from_dtype, const void* from, DType to_dtype, void* to, int64_t count);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_GATHER_PARAMETER_H_
