// A byte-level decoder-only transformer as a reprise model: one unit for the embedding, one per block, one for the
// head.
#ifndef REPRISE_EXAMPLES_COMMON_LANGUAGE_MODEL_H_
#define REPRISE_EXAMPLES_COMMON_LANGUAGE_MODEL_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/core/compute.h"
#include "reprise/core/model.h"
#include "reprise/graph/sharded_parameters.h"

namespace reprise::examples {

struct LanguageModelOptions {
  int depth = 2;    // blocks
  int width = 128;  // a multiple of heads
  int heads = 4;
  int context = 64;  // bytes that one sequence holds
  int batch = 16;    // sequences per rank and microbatch
};

inline constexpr int kVocabulary = 256;  // one token per byte

// The model and its compute functions; parameters are float32, the same list for every batch size and purpose.
struct LanguageModel {
  Model model;
  ComputeTable compute;
  TensorId tokens;  // input [batch, context], int32
  TensorId labels;  // input [batch, context], int32: the byte that follows each token
  TensorId loss;    // output, float32: mean negative log-likelihood in nats
  TensorId logits;  // output [batch, context, 256], float32; invalid unless asked for
};

// kLoss computes the loss, for training and evaluation; kLogits stops at the logits, for generation.
enum class LanguageModelOutput { kLoss, kLogits };

// InvalidArgument, with the numbers, for a size below 1, a width that the heads do not divide, or more than a model can
// hold; before memory is taken.
absl::StatusOr<LanguageModel> BuildLanguageModel(const LanguageModelOptions& options, LanguageModelOutput output);

// Gains 1; matrices normal with standard deviation 0.02, those that feed the residual divided by sqrt(2 depth).
ShardedParameters::Initializer LanguageModelInitializer(uint64_t seed, int depth);

}  // namespace reprise::examples

#endif  // REPRISE_EXAMPLES_COMMON_LANGUAGE_MODEL_H_
