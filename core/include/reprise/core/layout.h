// Where each parameter of a unit lies in the flat buffers that are gathered and reduced, and which part each rank
// holds.
//
// The parameters of a unit that share dtype, reduce dtype and trainability form one group, in order of addition. A
// parameter starts at a multiple of kAlignment elements; the group is padded to a multiple of world size times
// kAlignment; rank r holds the r-th equal part. The same element offsets serve every buffer of the group (gathered
// weights, reduce buffer, accumulator, master, optimizer state), and they depend on the model and the world size
// alone, so that all sessions on the same parameters agree.
#ifndef REPRISE_CORE_LAYOUT_H_
#define REPRISE_CORE_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/core/model.h"

namespace reprise {

// Elements: 128 bytes, one memory transaction of a GPU, in the narrowest floating-point dtype (bf16).
inline constexpr int64_t kAlignment = 64;

struct PlacedParameter {
  ParameterId parameter;
  int64_t first_element = 0;  // in the group
  int64_t num_elements = 0;

  friend bool operator==(const PlacedParameter&, const PlacedParameter&) = default;
};

struct FlatGroup {
  DType dtype = DType::kBFloat16;          // of the weights that compute reads
  std::optional<DType> reduce_dtype = {};  // ParameterSpec::reduce_dtype
  bool trainable = true;
  std::vector<PlacedParameter> parameters = {};  // by first_element, not overlapping
  int64_t num_elements = 0;                      // whole group with padding
  int64_t shard_elements = 0;                    // num_elements / world size

  friend bool operator==(const FlatGroup&, const FlatGroup&) = default;
};

// A run of real elements (no padding) that one rank's shard holds of one parameter.
struct ShardSegment {
  ParameterId parameter;
  int64_t shard_element = 0;      // first element in the shard
  int64_t parameter_element = 0;  // first element in the parameter, row-major
  int64_t num_elements = 0;       // at least 1

  friend bool operator==(const ShardSegment&, const ShardSegment&) = default;
};

struct ParameterPlace {
  int group = 0;              // in UnitLayout::groups of the parameter's unit
  int64_t first_element = 0;  // in the group

  friend bool operator==(const ParameterPlace&, const ParameterPlace&) = default;
};

struct UnitLayout {
  std::vector<FlatGroup> groups = {};          // in order of first parameter
  std::vector<int64_t> gathered_offsets = {};  // byte offset of each group in a gathered copy
  int64_t gathered_bytes = 0;                  // of one gathered copy: all groups, each in its dtype

  friend bool operator==(const UnitLayout&, const UnitLayout&) = default;
};

struct ModelLayout {
  int world_size = 1;
  std::vector<UnitLayout> units = {};           // by UnitId
  std::vector<ParameterPlace> parameters = {};  // by ParameterId

  friend bool operator==(const ModelLayout&, const ModelLayout&) = default;
};

// InvalidArgument for a world size below 1; ResourceExhausted, naming the unit, when a flat size overflows int64.
absl::StatusOr<ModelLayout> LayOut(const Model& model, int world_size);

// Segments of `rank`'s shard, in order.
std::vector<ShardSegment> Segments(const FlatGroup& group, int rank);

}  // namespace reprise

#endif  // REPRISE_CORE_LAYOUT_H_
