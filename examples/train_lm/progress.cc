#include "examples/train_lm/progress.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace reprise::examples {

void Progress::Add(const StepMetrics& metrics) {
  last_ = metrics;
  skipped_in_a_row_ = metrics.skipped ? skipped_in_a_row_ + 1 : 0;
  if (!metrics.skipped) return;
  if (untold_++ == 0) first_untold_ = metrics.step;
  last_untold_ = metrics.step;
}

std::string Progress::TakeSkipped() {
  if (untold_ == 0) return "";
  const std::string which = untold_ == 1 ? absl::StrCat("step ", first_untold_)
                                         : absl::StrCat(untold_, " steps from ", first_untold_, " to ", last_untold_);
  untold_ = 0;
  return absl::StrCat("skipped: ", which, ", because the gradient was not finite");
}

absl::Status Progress::Check() const {
  const bool is_lost = skipped_in_a_row_ >= std::min(kMaxSkippedInARow, steps_);
  if (std::isfinite(last_.loss) && !is_lost) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("training ended at step ", last_.step, " (the last would be ", steps_ - 1,
                   "): ", std::isfinite(last_.loss) ? "" : absl::StrCat("the loss is ", last_.loss, ", and "),
                   skipped_in_a_row_ == 0 ? "parameters are not finite"
                                          : absl::StrCat(skipped_in_a_row_, " steps in a row were skipped"),
                   "; use a smaller --lr"));
}

}  // namespace reprise::examples
