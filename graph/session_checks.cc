#include "graph/session_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/model/quoted.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// The widest access of a kernel, in bytes.
constexpr uintptr_t kExternalAlignment = 16;

// Of AdamW: see kernels/adamw.h for the error that it bounds.
constexpr float kSmallestEpsilon = 1e-15f;

// The calls whose function of that phase some schedule runs.
std::set<CallId> ScheduledBackward(const Plan& plan) {
  std::set<CallId> calls;
  for (const Schedule& schedule : plan.schedules) {
    for (const ScheduledCommand& command : schedule.commands) {
      if (const Backward* backward = std::get_if<Backward>(&command.command)) calls.insert(backward->call);
    }
  }
  return calls;
}

absl::Status CheckOneExternal(const Plan& plan, const ExternalBuffer& buffer, const std::string& what) {
  const int64_t num_bytes = plan.buffer(plan.tensor_buffers[buffer.tensor.value()].value).num_bytes;
  if (buffer.num_bytes < num_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " has ", buffer.num_bytes, " bytes, but the tensor needs ", num_bytes));
  }
  if (num_bytes > 0 && buffer.address == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(what, " has a null address; give ", num_bytes, " bytes of memory"));
  }
  if (reinterpret_cast<uintptr_t>(buffer.address) % kExternalAlignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " starts at an address that is not a multiple of ", kExternalAlignment, " bytes; align it"));
  }
  return absl::OkStatus();
}

absl::Status CheckRange(absl::string_view name, double value, bool ok, absl::string_view range) {
  if (ok && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, " but must be ", range));
}

// gradient_divisor, or what 0 stands for.
double Divisor(const StepValues& values, int world_size) {
  return values.gradient_divisor == 0 ? static_cast<double>(world_size) * values.microbatches : values.gradient_divisor;
}

}  // namespace

bool Overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
  if (a_bytes <= 0 || b_bytes <= 0) return false;
  const uintptr_t a_begin = reinterpret_cast<uintptr_t>(a), b_begin = reinterpret_cast<uintptr_t>(b);
  return a_begin < b_begin + static_cast<uintptr_t>(b_bytes) && b_begin < a_begin + static_cast<uintptr_t>(a_bytes);
}

absl::Status CheckCompute(const Plan& plan, const ComputeTable& compute) {
  const std::set<CallId> backward = ScheduledBackward(plan);
  const int num_calls = static_cast<int>(plan.model.calls().size());
  for (int c = 0; c < num_calls; ++c) {
    const auto found = compute.find(CallId(c));
    const bool has_forward = found != compute.end() && found->second.forward != nullptr;
    const bool has_backward = found != compute.end() && found->second.backward != nullptr;
    if (has_forward && (has_backward || !backward.contains(CallId(c)))) continue;
    return absl::InvalidArgumentError(absl::StrCat("call ", Quoted(plan.model.calls()[c].name), " has no ",
                                                   has_forward ? "backward" : "forward",
                                                   " function; add it to the compute table"));
  }
  for (const auto& [call, functions] : compute) {
    if (call.value() >= 0 && call.value() < num_calls) continue;
    return absl::InvalidArgumentError(absl::StrCat("the compute table has an entry for call ", call.value(),
                                                   ", but the model's calls are 0 to ", num_calls - 1,
                                                   "; use the ids that AddCall returned for this model"));
  }
  return absl::OkStatus();
}

absl::Status CheckExternal(const Plan& plan, absl::Span<const int> local_ranks,
                           absl::Span<const ExternalBuffer> buffers) {
  const absl::Span<const Tensor> tensors = plan.model.tensors();
  std::set<std::pair<int, TensorId>> given;
  for (size_t b = 0; b < buffers.size(); ++b) {
    const ExternalBuffer& buffer = buffers[b];
    const int64_t t = buffer.tensor.value();
    if (t < 0 || t >= static_cast<int64_t>(tensors.size()) || !tensors[t].spec.external) {
      return absl::InvalidArgumentError(absl::StrCat("external buffer ", b, " is for tensor ", t,
                                                     ", which is not an external tensor of the model; ",
                                                     "set TensorSpec::external or remove the buffer"));
    }
    const std::string what =
        absl::StrCat("external buffer of tensor ", Quoted(tensors[t].spec.name), " on rank ", buffer.rank);
    if (std::find(local_ranks.begin(), local_ranks.end(), buffer.rank) == local_ranks.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": the local ranks are ", absl::StrJoin(local_ranks, ", "), "; give buffers for these"));
    }
    if (!given.insert({buffer.rank, buffer.tensor}).second) {
      return absl::InvalidArgumentError(absl::StrCat(what, " is given twice; give one"));
    }
    REPRISE_RETURN_IF_ERROR(CheckOneExternal(plan, buffer, what));
    for (const ExternalBuffer& other : buffers.first(b)) {
      if (!Overlap(buffer.address, buffer.num_bytes, other.address, other.num_bytes)) continue;
      const Tensor& theirs = plan.model.tensor(other.tensor);
      const bool only_read = tensors[t].kind == TensorKind::kInput && theirs.kind == TensorKind::kInput;
      if (only_read && other.rank != buffer.rank) continue;
      return absl::InvalidArgumentError(absl::StrCat(what, " overlaps that of tensor ", Quoted(theirs.spec.name),
                                                     " on rank ", other.rank, "; give each its own memory"));
    }
  }
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (!tensors[t].spec.external) continue;
    for (int rank : local_ranks) {
      if (given.contains({rank, TensorId(static_cast<int64_t>(t))})) continue;
      return absl::InvalidArgumentError(absl::StrCat("external tensor ", Quoted(tensors[t].spec.name),
                                                     " has no buffer on rank ", rank,
                                                     "; add one to RunOptions::external"));
    }
    const int per_graph = plan.options.microbatches_per_graph.value_or(1);
    if (tensors[t].kind == TensorKind::kInput && per_graph != 1) {
      return absl::InvalidArgumentError(absl::StrCat("external input ", Quoted(tensors[t].spec.name),
                                                     " holds one microbatch, but ", "microbatches_per_graph is ",
                                                     per_graph, "; set it to 1 or use CopyInput"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOptimizer(const Optimizer& optimizer) {
  return std::visit(
      Overloaded{[](const AdamW& adamw) {
                   REPRISE_RETURN_IF_ERROR(
                       CheckRange("AdamW::beta1", adamw.beta1, adamw.beta1 >= 0 && adamw.beta1 < 1, "in [0, 1)"));
                   REPRISE_RETURN_IF_ERROR(
                       CheckRange("AdamW::beta2", adamw.beta2, adamw.beta2 >= 0 && adamw.beta2 < 1, "in [0, 1)"));
                   REPRISE_RETURN_IF_ERROR(
                       CheckRange("AdamW::epsilon", adamw.epsilon, adamw.epsilon >= kSmallestEpsilon,
                                  "finite and at least 1e-15: beside a smaller one squares that fp32 cannot hold would "
                                  "count"));
                   return CheckRange("AdamW::weight_decay", adamw.weight_decay, adamw.weight_decay >= 0,
                                     "finite and not negative");
                 },
                 [](const Sgd& sgd) {
                   REPRISE_RETURN_IF_ERROR(
                       CheckRange("Sgd::momentum", sgd.momentum, sgd.momentum >= 0 && sgd.momentum < 1, "in [0, 1)"));
                   return CheckRange("Sgd::weight_decay", sgd.weight_decay, sgd.weight_decay >= 0,
                                     "finite and not negative");
                 }},
      optimizer);
}

absl::Status CheckTrainOptions(const TrainOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckOptimizer(options.optimizer));
  if (options.clip_norm.has_value()) {
    REPRISE_RETURN_IF_ERROR(CheckRange("TrainOptions::clip_norm", *options.clip_norm, *options.clip_norm > 0,
                                       "positive and finite; leave it unset for no clipping"));
  }
  int exponent = 0;
  const bool is_power = options.loss_scale > 0 && std::frexp(options.loss_scale, &exponent) == 0.5f;
  return CheckRange("TrainOptions::loss_scale", options.loss_scale, is_power,
                    "a power of two, so that it rounds nothing");
}

float GradientDivisor(const StepValues& values, int world_size) {
  return static_cast<float>(Divisor(values, world_size));
}

absl::Status CheckStepValues(const StepValues& values, const Plan& plan, float loss_scale) {
  if (!values.learning_rate.has_value()) {
    return absl::InvalidArgumentError(
        "BeginStep: learning_rate is not set; set it in StepValues, to 0 for a step that changes no parameter");
  }
  REPRISE_RETURN_IF_ERROR(CheckRange("BeginStep: learning_rate", *values.learning_rate, *values.learning_rate >= 0,
                                     "finite and not negative"));
  const int per_graph = plan.options.microbatches_per_graph.value_or(1);
  if (values.microbatches < 1 || values.microbatches % per_graph != 0) {
    return absl::InvalidArgumentError(absl::StrCat("BeginStep: microbatches is ", values.microbatches,
                                                   " but must be a positive multiple of ", per_graph,
                                                   ", the microbatches_per_graph of the plan"));
  }
  REPRISE_RETURN_IF_ERROR(CheckRange("BeginStep: gradient_divisor", values.gradient_divisor,
                                     values.gradient_divisor >= 0, "positive and finite, or 0 for the mean"));
  const float divisor = GradientDivisor(values, plan.world_size()) * loss_scale;
  if (std::isnormal(divisor)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("BeginStep: gradient_divisor ", Divisor(values, plan.world_size()),
                                                 values.gradient_divisor == 0 ? ", the mean," : "",
                                                 " times loss_scale ", loss_scale,
                                                 " is outside the range of fp32; choose them closer to 1"));
}

}  // namespace reprise::internal
