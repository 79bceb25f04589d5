// The buffer uses of one command on one rank, looked up by what they are to it.
#ifndef REPRISE_GRAPH_COMMAND_USES_H_
#define REPRISE_GRAPH_COMMAND_USES_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/bindings.h"
#include "reprise/core/schedule.h"

namespace reprise::internal {

// Borrows its arguments. `local` is an index into Bindings::ranks.
class CommandUses {
 public:
  static constexpr int32_t kAnyId = std::numeric_limits<int32_t>::min();

  CommandUses(const Bindings& bindings, int local, const ScheduledCommand& command)
      : bindings_(bindings), local_(local), command_(command) {}

  // Uses of a role in this rank's memory, in the command's order.
  std::vector<BufferUse> All(Role role, int32_t id = kAnyId) const;
  // The first of them. Internal if there is none: the schedule is not a planner's.
  absl::StatusOr<BufferUse> First(Role role, int32_t id = kAnyId) const;

  template <class T>
  T* Pointer(const BufferUse& use) const {
    return reinterpret_cast<T*>(bindings_.address(local_, use));
  }
  // Of the first use.
  template <class T>
  absl::StatusOr<T*> Address(Role role, int32_t id = kAnyId) const {
    const absl::StatusOr<BufferUse> use = First(role, id);
    if (!use.ok()) return use.status();
    return Pointer<T>(*use);
  }

 private:
  const Bindings& bindings_;
  const int local_;
  const ScheduledCommand& command_;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMMAND_USES_H_
