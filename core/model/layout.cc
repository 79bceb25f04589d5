#include "reprise/core/layout.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/model/quoted.h"
#include "reprise/core/plan.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

// Of all groups of a model together, so that the sum of every buffer with a few values per element fits int64.
constexpr int64_t kMaxElements = int64_t{1} << 56;

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

int GroupOf(std::vector<FlatGroup>& groups, const ParameterSpec& spec) {
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].dtype == spec.dtype && groups[g].reduce_dtype == spec.reduce_dtype &&
        groups[g].trainable == spec.trainable) {
      return static_cast<int>(g);
    }
  }
  groups.push_back({.dtype = spec.dtype, .reduce_dtype = spec.reduce_dtype, .trainable = spec.trainable});
  return static_cast<int>(groups.size()) - 1;
}

class LayoutBuilder {
 public:
  LayoutBuilder(const Model& model, int world_size) : model_(model), world_size_(world_size) {}

  absl::StatusOr<ModelLayout> Run() && {
    layout_.world_size = world_size_;
    layout_.parameters.resize(model_.parameters().size());
    for (const Unit& unit : model_.units()) {
      REPRISE_ASSIGN_OR_RETURN(UnitLayout unit_layout, LayOutUnit(unit));
      layout_.units.push_back(std::move(unit_layout));
    }
    return std::move(layout_);
  }

 private:
  absl::StatusOr<UnitLayout> LayOutUnit(const Unit& unit) {
    UnitLayout result;
    for (ParameterId id : unit.parameters) {
      const ParameterSpec& spec = model_.parameter(id).spec;
      const int g = GroupOf(result.groups, spec);
      FlatGroup& group = result.groups[g];
      const int64_t first_element = RoundUp(group.num_elements, kAlignment);
      const int64_t num_elements = NumElements(spec.shape);
      if (num_elements > kMaxElements - first_element) return TooLarge(unit);
      // Until padding, num_elements is where the group's last element ends; empty parameters do not move it.
      if (num_elements > 0) group.num_elements = first_element + num_elements;
      group.parameters.push_back({.parameter = id, .first_element = first_element, .num_elements = num_elements});
      layout_.parameters[id.value()] = {.group = g, .first_element = first_element};
    }
    for (FlatGroup& group : result.groups) {
      group.num_elements = RoundUp(group.num_elements, world_size_ * kAlignment);
      group.shard_elements = group.num_elements / world_size_;
      if (group.num_elements > kMaxElements - total_elements_) return TooLarge(unit);
      total_elements_ += group.num_elements;
      result.gathered_offsets.push_back(RoundUp(result.gathered_bytes, kBufferAlignment));
      result.gathered_bytes = result.gathered_offsets.back() + group.num_elements * SizeOf(group.dtype);
    }
    return result;
  }

  absl::Status TooLarge(const Unit& unit) const {
    return absl::ResourceExhaustedError(absl::StrCat("flat size of unit ", internal::Quoted(unit.name),
                                                     " too large: for world size ", world_size_,
                                                     ", the units up to and including it need more than ", kMaxElements,
                                                     " elements; check the shapes of its parameters"));
  }

  const Model& model_;
  const int64_t world_size_;
  ModelLayout layout_;
  int64_t total_elements_ = 0;
};

}  // namespace

absl::StatusOr<ModelLayout> LayOut(const Model& model, int world_size) {
  if (world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("world size is ", world_size, "; it counts the ranks, so give at least 1"));
  }
  return LayoutBuilder(model, world_size).Run();
}

std::vector<ShardSegment> Segments(const FlatGroup& group, int rank) {
  std::vector<ShardSegment> segments;
  const int64_t shard_begin = rank * group.shard_elements;
  const int64_t shard_end = shard_begin + group.shard_elements;
  for (const PlacedParameter& placed : group.parameters) {
    const int64_t begin = std::max(shard_begin, placed.first_element);
    const int64_t end = std::min(shard_end, placed.first_element + placed.num_elements);
    if (begin >= end) continue;
    segments.push_back({.parameter = placed.parameter,
                        .shard_element = begin - shard_begin,
                        .parameter_element = begin - placed.first_element,
                        .num_elements = end - begin});
  }
  return segments;
}

}  // namespace reprise
