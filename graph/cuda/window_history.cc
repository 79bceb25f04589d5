#include "graph/cuda/window_history.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "reprise/core/plan.h"

namespace reprise::internal {

int64_t WindowHistory::Add(Lane lane, int64_t num_bytes) {
  open_.emplace(added_, std::pair(lane, num_bytes));
  return added_++;
}

void WindowHistory::Remove(int64_t number) { open_.erase(number); }

std::string WindowHistory::Text() const {
  return absl::StrCat(open_.size(), " of ", added_, " windows open", open_.empty() ? "" : ": ",
                      absl::StrJoin(open_, ", ", [](std::string* text, const auto& window) {
                        const auto& [lane, num_bytes] = window.second;
                        absl::StrAppend(text, "#", window.first, " of ", num_bytes, " bytes for ",
                                        std::string(Name(lane)));
                      }));
}

absl::Status CheckSameWindows(absl::Span<const std::string> by_rank) {
  for (size_t rank = 1; rank < by_rank.size(); ++rank) {
    if (by_rank[rank] == by_rank[0]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("ranks differ in the memory that is open to other devices: rank 0 has ", by_rank[0], ", but rank ",
                     rank, " has ", by_rank[rank],
                     "; before a session is created, destroy the same sessions and parameters on every rank"));
  }
  return absl::OkStatus();
}

}  // namespace reprise::internal
