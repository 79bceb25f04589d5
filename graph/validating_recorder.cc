#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/model/quoted.h"
#include "graph/recording_protocol.h"
#include "reprise/core/status_macros.h"
#include "reprise/graph/recorder.h"

namespace reprise {
namespace {

using internal::Quoted;

template <class... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::FailedPreconditionError(absl::StrCat(parts...));
}

// What must stay on one lane: a kind of communication over an axis. Unset for a command that does not communicate.
struct Communicator {
  absl::string_view kind;
  AxisId axis;
};
std::optional<Communicator> CommunicatorOf(const Command& command) {
  using Result = std::optional<Communicator>;
  return std::visit(Overloaded{
                        [](const AllGather& c) {
                          return Result({"all-gather", c.axis});
                        },
                        [](const ReduceScatter& c) {
                          return Result({"reduction", c.axis});
                        },
                        [](const SumNorm& c) {
                          return Result({"reduction", c.axis});
                        },
                        [](const Begin&) { return Result(); },
                        [](const NextMicrobatch&) { return Result(); },
                        [](const StageInputs&) { return Result(); },
                        [](const Forward&) { return Result(); },
                        [](const Backward&) { return Result(); },
                        [](const PackGradients&) { return Result(); },
                        [](const Accumulate&) { return Result(); },
                        [](const RecordLoss&) { return Result(); },
                        [](const UpdateParameters&) { return Result(); },
                        [](const RefreshShards&) { return Result(); },
                        [](const PublishMetrics&) { return Result(); },
                        [](const End&) { return Result(); },
                    },
                    command);
}

class ValidatingRecorder : public Recorder {
 public:
  ValidatingRecorder(std::shared_ptr<const Bindings> bindings, std::unique_ptr<Recorder> inner)
      : bindings_(std::move(bindings)), inner_(std::move(inner)) {}

  absl::Status Begin(const Schedule& schedule) override {
    REPRISE_RETURN_IF_ERROR(protocol_.Keep(internal::CheckBindings(bindings_.get())));
    if (inner_ == nullptr) {
      return protocol_.Keep(absl::InvalidArgumentError("there is no recorder to pass commands on to"));
    }
    REPRISE_RETURN_IF_ERROR(protocol_.Begin(*bindings_->plan, schedule));
    return protocol_.Keep(inner_->Begin(schedule));
  }

  absl::Status Record(CommandId id, const ScheduledCommand& command) override {
    REPRISE_RETURN_IF_ERROR(protocol_.Record(id, command));
    REPRISE_RETURN_IF_ERROR(protocol_.Keep(Check(id, command)));
    return protocol_.Keep(inner_->Record(id, command));
  }

  absl::StatusOr<std::unique_ptr<Executable>> Finish() override {
    REPRISE_RETURN_IF_ERROR(protocol_.Finish());
    return inner_->Finish();
  }

 private:
  absl::Status Check(CommandId id, const ScheduledCommand& command) {
    for (const Wait& wait : command.waits) {
      if (wait.command.value() >= 0 && wait.command < id) continue;
      return Refuse("it waits for command #", wait.command.value(), ", which is not recorded before it");
    }
    for (const BufferUse& use : command.uses) REPRISE_RETURN_IF_ERROR(CheckUse(use));
    return CheckLane(id, command);
  }

  absl::Status CheckUse(const BufferUse& use) const {
    const Plan& plan = *bindings_->plan;
    if (!use.buffer.valid() || static_cast<size_t>(use.buffer.value()) >= plan.buffers.size()) {
      return Refuse("it uses buffer ", use.buffer.value(), " of ", plan.buffers.size());
    }
    const Buffer& buffer = plan.buffer(use.buffer);
    if (use.offset < 0 || use.num_bytes < 0 || use.offset > buffer.num_bytes ||
        use.num_bytes > buffer.num_bytes - use.offset) {
      return Refuse("its ", Name(use.role), " is ", use.num_bytes, " bytes at ", use.offset, " of buffer ",
                    Quoted(buffer.name), ", which has ", buffer.num_bytes);
    }
    return absl::OkStatus();
  }

  // One communicator's collectives run in one order on every rank only if one lane has them all.
  absl::Status CheckLane(CommandId id, const ScheduledCommand& command) {
    const std::optional<Communicator> communicator = CommunicatorOf(command.command);
    if (!communicator.has_value()) return absl::OkStatus();
    for (const Seen& seen : seen_) {
      if (seen.communicator.kind != communicator->kind || seen.communicator.axis != communicator->axis) continue;
      if (seen.lane == command.lane) return absl::OkStatus();
      return Refuse("it uses the ", communicator->kind, " communicator on lane ", Name(command.lane), ", but command #",
                    seen.command.value(), " uses it on lane ", Name(seen.lane), "; a communicator keeps to one lane");
    }
    seen_.push_back({*communicator, command.lane, id});
    return absl::OkStatus();
  }

  struct Seen {
    Communicator communicator;
    Lane lane;
    CommandId command;
  };

  const std::shared_ptr<const Bindings> bindings_;
  const std::unique_ptr<Recorder> inner_;
  internal::RecordingProtocol protocol_;
  std::vector<Seen> seen_;
};

}  // namespace

std::unique_ptr<Recorder> NewValidatingRecorder(std::shared_ptr<const Bindings> bindings,
                                                std::unique_ptr<Recorder> inner) {
  return std::make_unique<ValidatingRecorder>(std::move(bindings), std::move(inner));
}

}  // namespace reprise
