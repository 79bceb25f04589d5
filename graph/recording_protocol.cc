#include "graph/recording_protocol.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/model/quoted.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

template <class... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::FailedPreconditionError(absl::StrCat(parts...));
}

}  // namespace

absl::Status CheckBindings(const Bindings* bindings) {
  if (bindings == nullptr || bindings->plan == nullptr) {
    return absl::InvalidArgumentError("a recorder needs bindings with a plan");
  }
  const std::vector<Buffer>& buffers = bindings->plan->buffers;
  const size_t ranks = bindings->ranks.size();
  if (bindings->addresses.size() != ranks) {
    return absl::InvalidArgumentError(absl::StrCat("there are addresses for ", bindings->addresses.size(), " ranks of ",
                                                   ranks, "; bind every local rank"));
  }
  for (size_t local = 0; local < ranks; ++local) {
    const std::vector<std::byte*>& addresses = bindings->addresses[local];
    if (addresses.size() != buffers.size()) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", bindings->ranks[local], " has ", addresses.size(),
                                                     " addresses for ", buffers.size(),
                                                     " buffers; bind every buffer of the plan"));
    }
    for (size_t b = 0; b < buffers.size(); ++b) {
      if (addresses[b] != nullptr || buffers[b].num_bytes == 0) continue;
      return absl::InvalidArgumentError(absl::StrCat("buffer ", Quoted(buffers[b].name), " has no address on rank ",
                                                     bindings->ranks[local], "; bind every buffer before recording"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckExecution(Execution execution) {
  switch (execution) {
    case Execution::kGraph:
    case Execution::kEager:
      return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("execution is ", static_cast<int>(execution), ", which does not exist; use graph or eager"));
}

absl::Status RecordingProtocol::Keep(absl::Status status) {
  if (status_.ok()) status_ = status;
  return status;
}

absl::Status RecordingProtocol::Begin(const Plan& plan, const Schedule& schedule) {
  REPRISE_RETURN_IF_ERROR(status_);
  return Keep(CheckBegin(plan, schedule));
}

absl::Status RecordingProtocol::CheckBegin(const Plan& plan, const Schedule& schedule) {
  if (state_ != State::kNew) return Refuse("Begin was called twice; use a new recorder for each schedule");
  const auto found = std::find(plan.schedules.begin(), plan.schedules.end(), schedule);
  if (found == plan.schedules.end()) {
    return Refuse("schedule ", Quoted(schedule.name), " of ", schedule.commands.size(), " commands is none of the ",
                  plan.schedules.size(), " schedules of the recorder's plan; record a plan's own schedules");
  }
  schedule_ = &*found;
  index_ = static_cast<int>(found - plan.schedules.begin());
  state_ = State::kRecording;
  return absl::OkStatus();
}

absl::Status RecordingProtocol::Record(CommandId id, const ScheduledCommand& command) {
  REPRISE_RETURN_IF_ERROR(status_);
  REPRISE_RETURN_IF_ERROR(Keep(CheckRecord(id, command)));
  ++recorded_;
  return absl::OkStatus();
}

absl::Status RecordingProtocol::CheckRecord(CommandId id, const ScheduledCommand& command) const {
  if (state_ != State::kRecording) return Refuse("Record was called outside Begin and Finish");
  if (recorded_ == schedule_->commands.size()) return Refuse("the schedule has only ", recorded_, " commands");
  if (id.value() < 0 || static_cast<size_t>(id.value()) != recorded_) {
    return Refuse("command #", id.value(), " was recorded after ", recorded_, " others; record in issue order");
  }
  if (command != schedule_->commands[recorded_]) {
    return Refuse("command #", id.value(), " is not that of the schedule; record what was begun");
  }
  return absl::OkStatus();
}

absl::Status RecordingProtocol::Finish() {
  if (state_ == State::kFinished) return Refuse("Finish was called twice; use a new recorder for each schedule");
  const bool begun = state_ == State::kRecording;
  state_ = State::kFinished;
  REPRISE_RETURN_IF_ERROR(status_);
  if (!begun) return Refuse("Finish was called before Begin");
  if (recorded_ == schedule_->commands.size()) return absl::OkStatus();
  return Refuse("Finish was called after ", recorded_, " of ", schedule_->commands.size(),
                " commands; record all of them");
}

}  // namespace reprise::internal
