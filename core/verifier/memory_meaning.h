// What memory holds between schedules, as the model, its layout and the step's definition say: the states in which
// every schedule must start and end.
#ifndef REPRISE_CORE_VERIFIER_MEMORY_MEANING_H_
#define REPRISE_CORE_VERIFIER_MEMORY_MEANING_H_

#include <functional>

#include "absl/status/status.h"
#include "core/verifier/model_meaning.h"

namespace reprise::internal {

// That each buffer that outlives a graph exists once, with its size and in its storage, and no other does. The plan has
// passed CheckForm.
absl::Status CheckPlaces(const Plan& plan);

// Between two schedules.
struct Moment {
  int64_t time = 0;    // the last microbatch that is in the sums, but in those of held->outstanding
  int64_t losses = 0;  // that is in the step state
  int control = 0;     // Value::time of the control block
  int version = 0;     // Value::time of what the step changes
  bool unsharded_gradients = false, accumulators = false;  // hold the sums; else anything
  const ScheduleState* held = nullptr;
};

// Bytes of a buffer that hold a value.
struct Place {
  BufferId buffer;
  int64_t offset = 0, num_bytes = 0;
  Value value;
};

// Everything that holds something of value then, but empty places. The plan has passed CheckPlaces.
void VisitMemory(const ModelMeaning& model, const Moment& moment, const std::function<void(const Place&)>& visit);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_VERIFIER_MEMORY_MEANING_H_
