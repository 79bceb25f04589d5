#include "examples/train_lm/text_data.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "examples/common/read_file.h"

namespace reprise::examples {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 30;

// SplitMix64: mixes a counter into 64 random bits.
uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace

absl::StatusOr<TextData> TextData::Load(const std::string& path, int context) {
  absl::StatusOr<std::string> text = ReadFile(path, kMaxBytes);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        absl::StrCat("the text: ", std::string(text.status().message()),
                                     "; pass --data=FILE, or run examples/quickstart, which makes one"));
  }
  TextData data;
  data.text_ = *std::move(text);
  data.context_ = context;
  data.split_ = data.text_.size() - data.text_.size() / 10;
  const size_t needed = static_cast<size_t>(context) + 1;
  if (data.text_.size() - data.split_ < needed || data.split_ < needed) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text \"", path, "\" has ", data.text_.size(), " bytes, but the validation tenth must hold ",
                     needed, "; use a text of at least ", 10 * needed, " bytes or a smaller --context"));
  }
  return data;
}

void TextData::Append(size_t begin, Batch& batch) const {
  for (int i = 0; i < context_; ++i) {
    batch.tokens.push_back(static_cast<unsigned char>(text_[begin + i]));
    batch.labels.push_back(static_cast<unsigned char>(text_[begin + i + 1]));
  }
}

Batch TextData::TrainBatch(int batch, uint64_t seed, int64_t step, int microbatch, int rank) const {
  Batch result;
  uint64_t key = Mix(seed);
  for (uint64_t part : {static_cast<uint64_t>(step), static_cast<uint64_t>(microbatch)}) key = Mix(key ^ part);
  const uint64_t places = split_ - static_cast<size_t>(context_);
  const int64_t first = int64_t{rank} * batch;
  for (int64_t i = first; i < first + batch; ++i) Append(Mix(key + static_cast<uint64_t>(i)) % places, result);
  return result;
}

Batch TextData::ValidationBatch(int batch, int64_t index) const {
  Batch result;
  for (int64_t i = index * batch; i < (index + 1) * batch; ++i) {
    Append(split_ + static_cast<size_t>(i * context_), result);
  }
  return result;
}

int64_t TextData::NumValidationBatches(int batch) const {
  return (static_cast<int64_t>(text_.size() - split_) - 1) / (static_cast<int64_t>(context_) * batch);
}

}  // namespace reprise::examples
