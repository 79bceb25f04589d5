// Strong ids: an index into one list of one Model or Plan, and not convertible to an index into another.
#ifndef REPRISE_CORE_IDS_H_
#define REPRISE_CORE_IDS_H_

#include <compare>
#include <cstdint>
#include <utility>

namespace reprise {

// Position of an element in its list, from 0. A default-constructed id is invalid (negative) and names nothing, and so
// does one that is made of a number that does not fit.
template <class Tag>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(int64_t value) : value_(std::in_range<int32_t>(value) ? static_cast<int32_t>(value) : -1) {}
  constexpr int32_t value() const { return value_; }
  constexpr bool valid() const { return value_ >= 0; }
  friend constexpr auto operator<=>(Id, Id) = default;

 private:
  int32_t value_ = -1;
};

using UnitId = Id<struct UnitTag>;            // Model::units()
using ParameterId = Id<struct ParameterTag>;  // Model::parameters()
using TensorId = Id<struct TensorTag>;        // Model::tensors()
using CallId = Id<struct CallTag>;            // Model::calls(), in forward order
using BufferId = Id<struct BufferTag>;        // Plan::buffers
using CommandId = Id<struct CommandTag>;      // Schedule::commands, in issue order
using AxisId = Id<struct AxisTag>;            // Plan::axes: the ranks that a communication command spans

}  // namespace reprise

#endif  // REPRISE_CORE_IDS_H_
