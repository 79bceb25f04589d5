#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/quoted.h"
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
                        [](const GradientNorm&) { return Result(); },
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
    if (state_ != State::kNew) return Keep(Refuse("Begin was called twice; use a new recorder for each schedule"));
    state_ = State::kRecording;
    num_commands_ = schedule.commands.size();
    REPRISE_RETURN_IF_ERROR(Keep(CheckBindings()));
    return Keep(inner_->Begin(schedule));
  }

  absl::Status Record(CommandId id, const ScheduledCommand& command) override {
    REPRISE_RETURN_IF_ERROR(status_);
    REPRISE_RETURN_IF_ERROR(Keep(Check(id, command)));
    ++recorded_;
    return Keep(inner_->Record(id, command));
  }

  absl::StatusOr<std::unique_ptr<Executable>> Finish() override {
    if (state_ == State::kFinished) return Refuse("Finish was called twice; use a new recorder for each schedule");
    const bool begun = state_ == State::kRecording;
    state_ = State::kFinished;
    REPRISE_RETURN_IF_ERROR(status_);
    if (!begun) return Refuse("Finish was called before Begin");
    if (recorded_ != num_commands_) {
      return Refuse("Finish was called after ", recorded_, " of ", num_commands_, " commands; record all of them");
    }
    return inner_->Finish();
  }

 private:
  enum class State { kNew, kRecording, kFinished };

  // Remembers the first error.
  absl::Status Keep(absl::Status status) {
    if (status_.ok()) status_ = status;
    return status;
  }

  absl::Status CheckBindings() const {
    const size_t ranks = bindings_->ranks.size(), buffers = bindings_->plan->buffers.size();
    if (bindings_->addresses.size() != ranks) {
      return Refuse("there are addresses for ", bindings_->addresses.size(), " ranks of ", ranks,
                    "; bind every local rank");
    }
    for (size_t local = 0; local < ranks; ++local) {
      if (bindings_->addresses[local].size() == buffers) continue;
      return Refuse("rank ", bindings_->ranks[local], " has ", bindings_->addresses[local].size(), " addresses for ",
                    buffers, " buffers; bind every buffer of the plan");
    }
    return absl::OkStatus();
  }

  absl::Status Check(CommandId id, const ScheduledCommand& command) {
    if (state_ != State::kRecording) return Refuse("Record was called outside Begin and Finish");
    if (id.value() < 0 || static_cast<size_t>(id.value()) != recorded_) {
      return Refuse("command #", id.value(), " was recorded after ", recorded_, " others; record in issue order");
    }
    if (recorded_ == num_commands_) return Refuse("the schedule has only ", num_commands_, " commands");
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
    for (size_t local = 0; use.num_bytes > 0 && local < bindings_->ranks.size(); ++local) {
      if (bindings_->addresses[local][use.buffer.value()] != nullptr) continue;
      return Refuse("buffer ", Quoted(buffer.name), " has no address on rank ", bindings_->ranks[local],
                    "; bind every buffer before recording");
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
  State state_ = State::kNew;
  size_t num_commands_ = 0, recorded_ = 0;
  std::vector<Seen> seen_;
  absl::Status status_;
};

}  // namespace

std::unique_ptr<Recorder> NewValidatingRecorder(std::shared_ptr<const Bindings> bindings,
                                                std::unique_ptr<Recorder> inner) {
  return std::make_unique<ValidatingRecorder>(std::move(bindings), std::move(inner));
}

}  // namespace reprise
