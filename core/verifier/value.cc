#include "core/verifier/value.h"

#include "absl/strings/str_cat.h"

namespace reprise::internal {

std::string TextOf(const Plan& plan, const Value& value) {
  const auto group = [&] { return absl::StrCat("group ", value.group, " of ", plan.model.units()[value.id].name); };
  const auto tensor = [&] { return absl::StrCat("tensor ", plan.model.tensors()[value.id].spec.name); };
  const auto parameter = [&] { return plan.model.parameters()[value.id].spec.name; };
  const auto version = [&] { return value.time == 0 ? " before the update" : " after the update"; };
  const auto microbatch = [&] { return absl::StrCat(" of microbatch ", value.time); };
  const auto writers = [&] { return absl::StrCat(" with ", value.index, " of its terms"); };
  switch (value.kind) {
    case ValueKind::kUndefined:
      return "nothing";
    case ValueKind::kShard:
      return absl::StrCat("the shard of ", group(), version());
    case ValueKind::kMaster:
      return absl::StrCat("the master shard of ", group(), version());
    case ValueKind::kGathered:
      return absl::StrCat("the gathered weights of ", group());
    case ValueKind::kOptimizerState:
      return absl::StrCat("optimizer state ", value.index, " of ", group(), version());
    case ValueKind::kStaging:
      return absl::StrCat("what is staged of ", tensor());
    case ValueKind::kTensor:
      return absl::StrCat(tensor(), microbatch());
    case ValueKind::kState:
      return absl::StrCat("state ", tensor(), " after ", value.time, " updates");
    case ValueKind::kTensorGradient:
      return absl::StrCat("the gradient of ", tensor(), microbatch(), writers());
    case ValueKind::kParameterGradient:
      return absl::StrCat("the gradient of ", parameter(), microbatch(), writers());
    case ValueKind::kCastGradient:
      return absl::StrCat("the gradient of ", parameter(), microbatch(), " in the reduce dtype");
    case ValueKind::kReceived:
      return absl::StrCat("what is received for ", group(), microbatch());
    case ValueKind::kAccumulator:
      return absl::StrCat("the sum of ", group(), " up to microbatch ", value.time);
    case ValueKind::kNormPartials:
      return absl::StrCat("the partial norms of ", group(), " up to microbatch ", value.time);
    case ValueKind::kControl:
      return absl::StrCat("the control block ", value.time == 0 ? "of the replay before" : "of this replay");
    case ValueKind::kStepState:
      return absl::StrCat("the step state with the losses up to microbatch ", value.time,
                          value.index == 0 ? "" : " and the norm");
    case ValueKind::kMetrics:
      return absl::StrCat("the metrics", version());
  }
  return "nothing";
}

}  // namespace reprise::internal
