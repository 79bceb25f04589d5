#include "graph/compute_binding.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/model/quoted.h"
#include "graph/command_error.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

std::string Title(const Plan& plan, Phase phase, CallId call) {
  return absl::StrCat(Name(phase), " of call ", Quoted(plan.model.call(call).name));
}

absl::StatusOr<const ComputeFunction*> FindFunction(const Bindings& bindings, const ComputeRun& run) {
  const auto entry = bindings.compute.find(run.call);
  if (entry != bindings.compute.end()) {
    const ComputeFunction& function = run.phase == Phase::kForward ? entry->second.forward : entry->second.backward;
    if (function != nullptr) return &function;
  }
  return absl::InvalidArgumentError(absl::StrCat("the compute table has no function for ",
                                                 Title(*bindings.plan, run.phase, run.call), "; set compute[CallId(",
                                                 run.call.value(), ")].", Name(run.phase)));
}

static_assert(kBufferAlignment % kScratchAlignment == 0);

ComputeContext MakeContext(const Bindings& bindings, int local, const ScheduledCommand& command, const ComputeRun& run,
                           Stream stream) {
  const Plan& plan = *bindings.plan;
  const ControlBlock* control = nullptr;
  void* scratch = nullptr;
  std::vector<ComputeContext::Operand> operands;
  for (const BufferUse& use : command.uses) {
    std::byte* const address = bindings.address(local, use);
    if (use.role == Role::kControl) control = reinterpret_cast<const ControlBlock*>(address);
    if (use.role == Role::kScratch) scratch = address;
    if (!IsOperand(use.role)) continue;
    const WriteMode mode = use.access == Access::kUpdate ? WriteMode::kAdd : WriteMode::kAssign;
    operands.push_back({use.role, use.id, ComputeDType(plan, use), mode, address});
  }
  return ComputeContext(plan.model, run.call, run.phase, bindings.ranks[local], plan.world_size(), run.position, stream,
                        control, scratch, std::move(operands));
}

}  // namespace

DType GradientDType(const Plan& plan, ParameterId parameter) {
  switch (plan.options.reduce) {
    case Reduce::kEveryMicrobatch:
      return plan.model.parameter(parameter).spec.dtype;
    case Reduce::kOncePerStep:
      return kAccumulateDType;
  }
  return kAccumulateDType;
}

bool IsOperand(Role role) {
  switch (role) {
    case Role::kParameter:
    case Role::kInput:
    case Role::kOutput:
    case Role::kSaved:
    case Role::kState:
    case Role::kOutputGradient:
    case Role::kInputGradient:
    case Role::kParameterGradient:
      return true;
    case Role::kShard:
    case Role::kGathered:
    case Role::kScratch:
    case Role::kReduceBuffer:
    case Role::kReceived:
    case Role::kAccumulator:
    case Role::kMaster:
    case Role::kOptimizerState:
    case Role::kStaging:
    case Role::kControl:
    case Role::kStepState:
    case Role::kNormPartials:
    case Role::kNormParts:
    case Role::kMetrics:
      return false;
  }
  return false;
}

std::string OperandName(const Plan& plan, const BufferUse& use) {
  const Model& model = plan.model;
  if (use.role != Role::kParameter && use.role != Role::kParameterGradient) {
    return absl::StrCat(Name(use.role), " of tensor ", Quoted(model.tensor(TensorId(use.id)).spec.name));
  }
  const Parameter& parameter = model.parameter(ParameterId(use.id));
  return absl::StrCat(use.role == Role::kParameter ? "" : "gradient of ", "parameter ", Quoted(parameter.spec.name),
                      " of unit ", Quoted(model.unit(parameter.unit).name));
}

std::string ComputeTitle(const Plan& plan, const Command& command) {
  if (const Forward* forward = std::get_if<Forward>(&command)) return Title(plan, Phase::kForward, forward->call);
  if (const Backward* backward = std::get_if<Backward>(&command)) return Title(plan, Phase::kBackward, backward->call);
  return "";
}

double FloatAt(const std::byte* array, DType dtype, int64_t element) {
  if (dtype == DType::kBFloat16) {
    BFloat16 value;
    std::memcpy(&value, array + element * SizeOf(dtype), sizeof(value));
    return static_cast<float>(value);
  }
  float value = 0;
  std::memcpy(&value, array + element * SizeOf(dtype), sizeof(value));
  return value;
}

DType ComputeDType(const Plan& plan, const BufferUse& use) {
  if (use.role == Role::kParameter) return plan.model.parameter(ParameterId(use.id)).spec.dtype;
  if (use.role == Role::kParameterGradient) return GradientDType(plan, ParameterId(use.id));
  return plan.model.tensor(TensorId(use.id)).spec.dtype;
}

absl::Status RunCompute(const Bindings& bindings, int local, const ScheduledCommand& command, const ComputeRun& run,
                        Stream stream) {
  REPRISE_ASSIGN_OR_RETURN(const ComputeFunction* const function, FindFunction(bindings, run));
  const std::string title =
      absl::StrCat(Title(*bindings.plan, run.phase, run.call), " on rank ", bindings.ranks[local]);
  ComputeContext context = MakeContext(bindings, local, command, run, stream);
  absl::Status status;
  const absl::Status thrown = WithoutExceptions(title, [&] {
    status = (*function)(context);
    return absl::OkStatus();
  });
  REPRISE_RETURN_IF_ERROR(thrown);
  // A refused request is the cause of what the function says about the empty view that it got.
  REPRISE_RETURN_IF_ERROR(context.status());
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(title, " failed: ", std::string(status.message())));
}

}  // namespace reprise::internal
