#include "graph/host/host_executable.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/command_error.h"
#include "graph/compute_binding.h"
#include "graph/host/adversarial_replay.h"
#include "kernels/parallel.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// Does replaying the command call functions of the user's? These may share state between ranks.
bool CallsFunctions(const HostRecording& recording, const Command& command) {
  return recording.execution == Execution::kEager && IsCompute(command);
}

class HostExecutable : public Executable {
 public:
  HostExecutable(HostRecording recording, std::shared_ptr<HostRuns> runs)
      : recording_(std::move(recording)),
        runs_(std::move(runs)),
        status_(CheckRunnable(*recording_.bindings->plan, recording_.schedule())) {}

  absl::Status Replay() override {
    if (!status_.ok()) return status_;
    HostProfile* const profile = runs_->profile.get();
    const bool is_timed = profile != nullptr && profile->IsOf(*recording_.bindings->plan);
    const int replay = is_timed ? profile->StartReplay() : 0;
    ReplayTimes times = is_timed ? ReplayTimes(recording_) : ReplayTimes();
    status_ = ReplayOnce(times);
    if (is_timed && status_.ok()) profile->Add(replay, recording_, times);
    return status_;
  }

  absl::Status CheckReplay() override {
    const bool is_recorded = recording_.execution == Execution::kGraph;
    if (!status_.ok() || !is_recorded || recording_.bindings->write_digests == nullptr) return status_;
    ReplayTimes untimed;
    *recording_.checks = true;
    status_ = ReplayOnce(untimed);
    *recording_.checks = false;
    return status_;
  }

 private:
  absl::Status ReplayOnce(ReplayTimes& times) {
    const kernels::ThreadLimit limit(runs_->threads);
    switch (runs_->order) {
      case ReplayOrder::kIssue:
        return ReplayInIssueOrder(recording_, times);
      case ReplayOrder::kAdversarial:
        return ReplayAdversarially(recording_, runs_->random, times);
      case ReplayOrder::kThreads:
        return ReplayOnThreads(recording_, times);
    }
    return absl::InternalError("unknown replay order");
  }

  const HostRecording recording_;
  const std::shared_ptr<HostRuns> runs_;
  absl::Status status_;  // of the first failed replay; final
};

}  // namespace

std::unique_ptr<Executable> NewHostExecutable(HostRecording recording, std::shared_ptr<HostRuns> runs) {
  return std::make_unique<HostExecutable>(std::move(recording), std::move(runs));
}

absl::Status CheckRunnable(const Plan& plan, const Schedule& schedule) {
  std::array<std::vector<size_t>, kNumLanes> lanes;
  for (size_t c = 0; c < schedule.commands.size(); ++c) {
    lanes[static_cast<int>(schedule.commands[c].lane)].push_back(c);
  }
  std::array<size_t, kNumLanes> next = {};
  std::vector<bool> complete(schedule.commands.size(), false);
  const auto waiting_for = [&](size_t command) {
    std::vector<CommandId> missing;
    for (const Wait& wait : schedule.commands[command].waits) {
      const bool exists = wait.command.valid() && static_cast<size_t>(wait.command.value()) < complete.size();
      if (!exists || !complete[wait.command.value()]) missing.push_back(wait.command);
    }
    return missing;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (int lane = 0; lane < kNumLanes; ++lane) {
      while (next[lane] < lanes[lane].size() && waiting_for(lanes[lane][next[lane]]).empty()) {
        complete[lanes[lane][next[lane]++]] = true;
        progress = true;
      }
    }
  }
  std::string blocked;
  for (int lane = 0; lane < kNumLanes; ++lane) {
    if (next[lane] == lanes[lane].size()) continue;
    const size_t command = lanes[lane][next[lane]];
    absl::StrAppend(&blocked, blocked.empty() ? "" : "; ", "lane ", Name(static_cast<Lane>(lane)), " stands at #",
                    command, " ", Describe(plan, schedule.commands[command].command), ", which waits for");
    for (const CommandId id : waiting_for(command)) {
      const bool exists = id.valid() && static_cast<size_t>(id.value()) < complete.size();
      absl::StrAppend(&blocked, " #", id.value(), " ",
                      exists ? Describe(plan, schedule.commands[id.value()].command) : "(no such command)");
    }
  }
  if (blocked.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("schedule ", schedule.name,
                                                    " cannot complete on any rank: ", blocked,
                                                    "; replay only schedules whose waits name earlier commands"));
}

absl::Status ReplayInIssueOrder(const HostRecording& recording, ReplayTimes& times) {
  const Plan& plan = *recording.bindings->plan;
  std::vector<absl::Status> statuses(recording.ranks());
  for (int c = 0; c < recording.commands(); ++c) {
    const std::vector<HostWork>& work = recording.work[c];
    if (std::none_of(work.begin(), work.end(), [](const HostWork& w) { return w != nullptr; })) continue;
    const auto run = [&](int64_t rank) {
      if (work[rank] != nullptr) statuses[rank] = work[rank]();
    };
    if (CallsFunctions(recording, recording.schedule().commands[c].command)) {
      for (int rank = 0; rank < recording.ranks(); ++rank) {
        times.Begin(rank, c);
        run(rank);
        times.End(rank, c);
      }
    } else {
      for (int rank = 0; rank < recording.ranks(); ++rank) times.Begin(rank, c);
      kernels::ParallelFor(recording.ranks(), run);
      for (int rank = 0; rank < recording.ranks(); ++rank) times.End(rank, c);
    }
    for (const absl::Status& status : statuses) {
      REPRISE_RETURN_IF_ERROR(AtCommand(plan, CommandId(c), recording.schedule().commands[c].command, status));
    }
  }
  return absl::OkStatus();
}

}  // namespace reprise::internal
