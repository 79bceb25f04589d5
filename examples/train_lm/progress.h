// What the steps of a training came to.
#ifndef REPRISE_EXAMPLES_TRAIN_LM_PROGRESS_H_
#define REPRISE_EXAMPLES_TRAIN_LM_PROGRESS_H_

#include <string>

#include "absl/status/status.h"
#include "reprise/core/control_block.h"

namespace reprise::examples {

// Follows the metrics of all steps, in order. Texts number steps from 0, as StepMetrics and the library's messages do.
class Progress {
 public:
  // So many skipped steps in a row are no accident of one batch.
  static constexpr int kMaxSkippedInARow = 10;

  // `steps`: of the whole training.
  explicit Progress(int steps) : steps_(steps) {}

  void Add(const StepMetrics& metrics);
  // Which steps were skipped and not told of before, in a few words; empty if there are none.
  std::string TakeSkipped();
  // Aborted, naming the step: its loss is not finite, or it and all before it were skipped, or as many as
  // kMaxSkippedInARow. After TakeSkipped.
  absl::Status Check() const;

 private:
  const int steps_;
  int64_t first_untold_ = -1, last_untold_ = -1;  // skipped; -1: none
  int untold_ = 0, skipped_in_a_row_ = 0;
  StepMetrics last_;
};

}  // namespace reprise::examples

#endif  // REPRISE_EXAMPLES_TRAIN_LM_PROGRESS_H_
