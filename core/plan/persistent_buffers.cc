#include "core/plan/persistent_buffers.h"

#include "absl/strings/str_cat.h"

namespace reprise::internal {

ParameterBuffers PlanParameterBuffers(const Model& model, const ModelLayout& layout, DType master) {
  ParameterBuffers result;
  const auto add = [&result](std::string name, Storage storage, int64_t num_bytes) {
    int64_t& end = result.num_bytes[static_cast<int>(storage)];
    const BufferId id(static_cast<int64_t>(result.buffers.size()));
    result.buffers.push_back({std::move(name), storage, num_bytes, end});
    end += (num_bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
    return id;
  };
  for (size_t u = 0; u < layout.units.size(); ++u) {
    UnitBuffers& unit = result.units.emplace_back();
    const std::vector<FlatGroup>& groups = layout.units[u].groups;
    for (size_t g = 0; g < groups.size(); ++g) {
      const std::string suffix =
          groups.size() == 1 ? model.units()[u].name : absl::StrCat(model.units()[u].name, ".", g);
      const int64_t elements = groups[g].shard_elements;
      unit.weights.push_back(
          add(absl::StrCat("weights.", suffix), Storage::kWeights, elements * SizeOf(groups[g].dtype)));
      unit.masters.push_back(groups[g].dtype == master
                                 ? unit.weights.back()
                                 : add(absl::StrCat("master.", suffix), Storage::kMasters, elements * SizeOf(master)));
    }
  }
  return result;
}

}  // namespace reprise::internal
