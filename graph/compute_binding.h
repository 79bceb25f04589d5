// Calls the user's functions with contexts made from a command's buffer uses.
#ifndef REPRISE_GRAPH_COMPUTE_BINDING_H_
#define REPRISE_GRAPH_COMPUTE_BINDING_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "graph/bindings.h"
#include "reprise/core/schedule.h"
#include "reprise/core/stream.h"

namespace reprise::internal {

// The dtype in which backward writes a parameter's gradient.
DType GradientDType(const Plan& plan, ParameterId parameter);
// The dtype of what a use of a compute command holds; the role is one that ComputeContext hands out.
DType ComputeDType(const Plan& plan, const BufferUse& use);
// Does ComputeContext hand out what has this role?
bool IsOperand(Role role);
// Of such a use, for messages: "input_gradient of tensor "x"", "gradient of parameter "w" of unit "u"".
std::string OperandName(const Plan& plan, const BufferUse& use);
// "backward of call "c0"" for a Forward or Backward, empty for any other command.
std::string ComputeTitle(const Plan& plan, const Command& command);
inline bool IsCompute(const Command& command) {
  return std::holds_alternative<Forward>(command) || std::holds_alternative<Backward>(command);
}
// An element of an array of floating-point `dtype`, at any address.
double FloatAt(const std::byte* array, DType dtype, int64_t element);

struct ComputeRun {
  CallId call;
  Phase phase = Phase::kForward;
  int position = 0;
};
// Runs the function of Bindings::compute for a Forward or Backward command on local rank `local`. InvalidArgument,
// naming the call, if there is none. Errors of the function come back with phase, call and rank in front, refused
// requests as the context words them, exceptions as Internal.
absl::Status RunCompute(const Bindings& bindings, int local, const ScheduledCommand& command, const ComputeRun& run,
                        Stream stream);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMPUTE_BINDING_H_
