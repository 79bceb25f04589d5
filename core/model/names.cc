// Words for the enumerations of models, schedules, plans and timelines.
#include "absl/strings/string_view.h"
#include "reprise/core/model.h"
#include "reprise/core/overlap.h"
#include "reprise/core/plan.h"
#include "reprise/core/schedule.h"
#include "reprise/core/timeline.h"

namespace reprise {

absl::string_view Name(TensorKind kind) {
  switch (kind) {
    case TensorKind::kInput:
      return "input";
    case TensorKind::kActivation:
      return "activation";
    case TensorKind::kOutput:
      return "output";
    case TensorKind::kState:
      return "state";
  }
  return "unknown";
}

absl::string_view Name(Lane lane) {
  switch (lane) {
    case Lane::kCompute:
      return "compute";
    case Lane::kAllGather:
      return "all_gather";
    case Lane::kReduceScatter:
      return "reduce_scatter";
    case Lane::kCopy:
      return "copy";
  }
  return "unknown";
}

absl::string_view Name(Access access) {
  switch (access) {
    case Access::kRead:
      return "read";
    case Access::kAssign:
      return "assign";
    case Access::kUpdate:
      return "update";
  }
  return "unknown";
}

absl::string_view Name(Role role) {
  switch (role) {
    case Role::kShard:
      return "shard";
    case Role::kGathered:
      return "gathered";
    case Role::kParameter:
      return "parameter";
    case Role::kInput:
      return "input";
    case Role::kOutput:
      return "output";
    case Role::kSaved:
      return "saved";
    case Role::kState:
      return "state";
    case Role::kScratch:
      return "scratch";
    case Role::kOutputGradient:
      return "output_gradient";
    case Role::kInputGradient:
      return "input_gradient";
    case Role::kParameterGradient:
      return "parameter_gradient";
    case Role::kReduceBuffer:
      return "reduce_buffer";
    case Role::kReceived:
      return "received";
    case Role::kAccumulator:
      return "accumulator";
    case Role::kMaster:
      return "master";
    case Role::kOptimizerState:
      return "optimizer_state";
    case Role::kStaging:
      return "staging";
    case Role::kControl:
      return "control";
    case Role::kStepState:
      return "step_state";
    case Role::kNormPartials:
      return "norm_partials";
    case Role::kNormParts:
      return "norm_parts";
    case Role::kMetrics:
      return "metrics";
  }
  return "unknown";
}

absl::string_view Name(WaitReason reason) {
  switch (reason) {
    case WaitReason::kData:
      return "data";
    case WaitReason::kOrder:
      return "order";
    case WaitReason::kFork:
      return "fork";
    case WaitReason::kJoin:
      return "join";
  }
  return "unknown";
}

absl::string_view Name(WriteMode mode) {
  switch (mode) {
    case WriteMode::kAssign:
      return "assign";
    case WriteMode::kAdd:
      return "add";
  }
  return "unknown";
}

absl::string_view Name(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
  }
  return "unknown";
}

absl::string_view Name(ActivityKind kind) {
  switch (kind) {
    case ActivityKind::kKernel:
      return "kernel";
    case ActivityKind::kCopy:
      return "copy";
    case ActivityKind::kFill:
      return "fill";
  }
  return "unknown";
}

absl::string_view Name(ExposedCause cause) {
  switch (cause) {
    case ExposedCause::kFirstGather:
      return "first_gather";
    case ExposedCause::kLastReduction:
      return "last_reduction";
    case ExposedCause::kOther:
      return "other";
  }
  return "unknown";
}

absl::string_view Name(Storage storage) {
  switch (storage) {
    case Storage::kWeights:
      return "weights";
    case Storage::kMasters:
      return "masters";
    case Storage::kSession:
      return "session";
    case Storage::kGradients:
      return "gradients";
    case Storage::kHostVisible:
      return "host_visible";
    case Storage::kCommunicating:
      return "communicating";
    case Storage::kLocal:
      return "local";
    case Storage::kExternal:
      return "external";
  }
  return "unknown";
}

}  // namespace reprise
