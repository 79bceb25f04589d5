// What memory holds, as symbols: each value that the model, or the step's definition, gives a name to. Two values are
// equal exactly if the model says that they are, because every command that gives a value reads only what the model
// says: so a name stands for the whole expression behind it.
#ifndef REPRISE_CORE_VERIFIER_VALUE_H_
#define REPRISE_CORE_VERIFIER_VALUE_H_

#include <cstdint>
#include <string>

#include "reprise/core/plan.h"

namespace reprise::internal {

// With the fields of Value that tell two of a kind apart. `time` is a microbatch, counted from the first one of the
// replay, or how often what is kept across replays has changed.
enum class ValueKind : uint8_t {
  kUndefined,
  kShard,              // unit, group, time: this rank's part of the weights, before (0) and after (1) the step's update
  kMaster,             // the same of the masters
  kGathered,           // unit, group: the whole weights, before the update
  kOptimizerState,     // unit, group, index, time
  kStaging,            // tensor: all that the host has staged
  kTensor,             // tensor, time
  kState,              // tensor, time
  kTensorGradient,     // tensor, index, time: with what the first `index` of its writers give
  kParameterGradient,  // parameter, index, time: the same; with Reduce::kOncePerStep on top of earlier microbatches
  kCastGradient,       // parameter, time: the whole gradient, cast
  kReceived,           // unit, group, time: what a reduction delivers
  kAccumulator,        // unit, group, time: the sum up to this microbatch
  kNormPartials,       // unit, group, time: the squares of that sum, if it is the step's last
  kControl,            // time: 0 before this replay's NextMicrobatch, 1 after it
  kStepState,          // index, time: losses up to a microbatch; with the step's norm if the index is 1
  kMetrics,            // time
};

struct Value {
  ValueKind kind = ValueKind::kUndefined;
  int32_t id = 0, group = 0, index = 0;
  int64_t time = 0;
  friend bool operator==(const Value&, const Value&) = default;
};

// For messages: "tensor y0 of microbatch 0".
std::string TextOf(const Plan& plan, const Value& value);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_VERIFIER_VALUE_H_
