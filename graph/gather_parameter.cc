#include "graph/gather_parameter.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "core/model/quoted.h"
#include "graph/rank_list.h"
#include "reprise/core/status_macros.h"
#include "reprise/kernels/cast.h"

namespace reprise::internal {
namespace {

std::vector<ShardSegment> SegmentsOf(const FlatGroup& group, ParameterId parameter, int rank) {
  std::vector<ShardSegment> segments = Segments(group, rank);
  std::erase_if(segments, [&](const ShardSegment& segment) { return segment.parameter != parameter; });
  return segments;
}

int64_t BytesOf(const std::vector<ShardSegment>& segments, DType dtype) {
  int64_t num_elements = 0;
  for (const ShardSegment& segment : segments) num_elements += segment.num_elements;
  return num_elements * SizeOf(dtype);
}

absl::Status ReadSegments(Machine& world, int local, const std::vector<ShardSegment>& segments, DType dtype,
                          const std::byte* shard, std::string& bytes) {
  bytes.resize(static_cast<size_t>(BytesOf(segments, dtype)));
  char* to = bytes.data();
  for (const ShardSegment& segment : segments) {
    const int64_t num_bytes = segment.num_elements * SizeOf(dtype);
    REPRISE_RETURN_IF_ERROR(world.CopyToHost(local, to, shard + segment.shard_element * SizeOf(dtype), num_bytes));
    to += num_bytes;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CastOnHost(DType from_dtype, const void* from, DType to_dtype, void* to, int64_t count) {
  ImmediateHostQueue queue;
  return kernels::Cast(Stream(&queue), from_dtype, from, to_dtype, to, count);
}

absl::Status RefuseToGather(Machine& world, absl::string_view what, const absl::Status& refusal) {
  if (world.is_all_local()) return refusal;
  world.ExchangeBytes(what, std::vector<std::string>(world.local_ranks().size())).status().IgnoreError();
  return refusal;
}

absl::StatusOr<std::vector<float>> GatherParameter(Machine& world, absl::string_view what, const std::string& object,
                                                   const Model& model, const ModelLayout& layout, ParameterId parameter,
                                                   DType dtype, absl::Span<const std::byte* const> shards) {
  const Parameter& declared = model.parameter(parameter);
  const FlatGroup& group = layout.units[declared.unit.value()].groups[layout.parameters[parameter.value()].group];
  std::vector<std::string> mine(world.local_ranks().size());
  absl::Status status;
  for (size_t local = 0; local < mine.size() && status.ok(); ++local) {
    const int rank = world.local_ranks()[local];
    status = ReadSegments(world, static_cast<int>(local), SegmentsOf(group, parameter, rank), dtype, shards[local],
                          mine[local]);
  }
  // A rank that failed takes part all the same, with nothing, so that the others do not wait for it.
  if (!status.ok()) mine.assign(mine.size(), "");
  const char end = '\0';  // of the object's name, which holds none
  for (std::string& bytes : mine) bytes.insert(0, object + end);
  absl::StatusOr<std::vector<std::string>> parts = world.ExchangeBytes(what, mine);
  REPRISE_RETURN_IF_ERROR(status);
  REPRISE_RETURN_IF_ERROR(parts.status());
  std::vector<std::string> objects;
  for (std::string& bytes : *parts) {
    const size_t size = bytes.find(end);
    // A rank that refused gave nothing.
    objects.push_back(size == std::string::npos ? object : bytes.substr(0, size));
    bytes.erase(0, size == std::string::npos ? size : size + 1);
  }
  const std::string difference = Difference("this call is on", objects);
  if (!difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": ranks disagree: ", difference, "; use the same objects on every rank"));
  }

  std::vector<float> whole(static_cast<size_t>(NumElements(declared.spec.shape)));
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::vector<ShardSegment> segments = SegmentsOf(group, parameter, rank);
    const std::string& bytes = (*parts)[rank];
    if (static_cast<int64_t>(bytes.size()) != BytesOf(segments, dtype)) {
      return absl::FailedPreconditionError(absl::StrCat(what, ": rank ", rank, " gave ", bytes.size(),
                                                        " bytes instead of ", BytesOf(segments, dtype),
                                                        "; look for an error on that rank"));
    }
    const char* from = bytes.data();
    for (const ShardSegment& segment : segments) {
      REPRISE_RETURN_IF_ERROR(
          CastOnHost(dtype, from, DType::kFloat32, whole.data() + segment.parameter_element, segment.num_elements));
      from += segment.num_elements * SizeOf(dtype);
    }
  }
  return whole;
}

}  // namespace reprise::internal
