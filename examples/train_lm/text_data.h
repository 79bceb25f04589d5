// A text as bytes, cut into a training and a validation part, and the batches drawn from them.
#ifndef REPRISE_EXAMPLES_TRAIN_LM_TEXT_DATA_H_
#define REPRISE_EXAMPLES_TRAIN_LM_TEXT_DATA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace reprise::examples {

struct Batch {
  std::vector<int32_t> tokens, labels;  // [batch, context]; labels are the bytes that follow
};

class TextData {
 public:
  // The last tenth of the file is the validation part. Errors of ReadFile, with a remedy, for more than 1 GiB or what
  // is not a readable file; InvalidArgument, with the numbers, if a part is shorter than one sequence of `context`
  // bytes and its label.
  static absl::StatusOr<TextData> Load(const std::string& path, int context);

  // Sequences from random places of the training part: a function of the arguments alone. The batches of all ranks
  // together depend on their sum alone: two of 8 are four of 4.
  Batch TrainBatch(int batch, uint64_t seed, int64_t step, int microbatch, int rank) const;
  // The index-th batch of consecutive, disjoint sequences of the validation part.
  Batch ValidationBatch(int batch, int64_t index) const;
  // How many such batches there are.
  int64_t NumValidationBatches(int batch) const;

  absl::string_view validation() const { return absl::string_view(text_).substr(split_); }
  int64_t train_bytes() const { return static_cast<int64_t>(split_); }

 private:
  void Append(size_t begin, Batch& batch) const;

  std::string text_;
  size_t split_ = 0;  // start of the validation part
  int context_ = 0;
};

}  // namespace reprise::examples

#endif  // REPRISE_EXAMPLES_TRAIN_LM_TEXT_DATA_H_
