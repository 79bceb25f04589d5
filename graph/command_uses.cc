#include "graph/command_uses.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace reprise::internal {

std::vector<BufferUse> CommandUses::All(Role role, int32_t id) const {
  std::vector<BufferUse> found;
  for (const BufferUse& use : command_.uses) {
    if (use.is_own() && use.role == role && (id == kAnyId || use.id == id)) found.push_back(use);
  }
  return found;
}

absl::StatusOr<BufferUse> CommandUses::First(Role role, int32_t id) const {
  const std::vector<BufferUse> found = All(role, id);
  if (!found.empty()) return found.front();
  const std::string which = id == kAnyId ? "" : absl::StrCat(" and id ", id);
  return absl::InternalError(
      absl::StrCat("the command has no use with role ", Name(role), which, "; record the schedules of a planner"));
}

}  // namespace reprise::internal
