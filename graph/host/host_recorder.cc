#include "graph/host/host_recorder.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/check_writes.h"
#include "graph/command_error.h"
#include "graph/host/host_collectives.h"
#include "graph/host/host_executable.h"
#include "graph/launch_command.h"
#include "graph/recording_protocol.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// Keeps what is enqueued.
class RecordingQueue : public HostQueue {
 public:
  void Enqueue(std::function<void()> work) override { work_.push_back(std::move(work)); }
  std::vector<std::function<void()>> Take() { return std::move(work_); }

 private:
  std::vector<std::function<void()>> work_;
};

absl::Status CheckHostWrites(const Bindings& bindings, int local, const ScheduledCommand& command,
                             absl::FunctionRef<absl::Status()> launch) {
  const auto fill = [](void* to, uint8_t value, int64_t num_bytes) {
    std::memset(to, value, static_cast<size_t>(num_bytes));
    return absl::OkStatus();
  };
  const auto read = [](void* to_host, const void* from, int64_t num_bytes) {
    std::memcpy(to_host, from, static_cast<size_t>(num_bytes));
    return absl::OkStatus();
  };
  return CheckWrites(bindings, local, command, {.fill = fill, .read = read}, launch);
}

class HostRecorder : public Recorder {
 public:
  HostRecorder(Execution execution, std::shared_ptr<const Bindings> bindings, std::shared_ptr<HostRuns> runs)
      : launcher_(std::make_shared<const CommandLauncher>(bindings)), runs_(std::move(runs)) {
    recording_.bindings = std::move(bindings);
    recording_.execution = execution;
  }

  absl::Status Begin(const Schedule& schedule) override {
    REPRISE_RETURN_IF_ERROR(protocol_.Begin(*launcher_->bindings().plan, schedule));
    recording_.schedule = schedule;
    return absl::OkStatus();
  }

  absl::Status Record(CommandId id, const ScheduledCommand& command) override {
    REPRISE_RETURN_IF_ERROR(protocol_.Record(id, command));
    absl::StatusOr<std::vector<HostWork>> work = WorkOf(command);
    REPRISE_RETURN_IF_ERROR(protocol_.Keep(work.status()));
    recording_.work.push_back(*std::move(work));
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Executable>> Finish() override {
    REPRISE_RETURN_IF_ERROR(protocol_.Finish());
    return NewHostExecutable(std::move(recording_), runs_);
  }

 private:
  absl::StatusOr<std::vector<HostWork>> WorkOf(const ScheduledCommand& command) const {
    if (IsCollective(command.command)) return CollectiveWork(*recording_.bindings, command);
    std::vector<HostWork> work;
    for (int local = 0; local < recording_.ranks(); ++local) {
      REPRISE_ASSIGN_OR_RETURN(work.emplace_back(), LocalWork(local, command));
    }
    return work;
  }

  absl::StatusOr<HostWork> LocalWork(int local, const ScheduledCommand& command) const {
    switch (recording_.execution) {
      case Execution::kGraph:
        return GraphWork(local, command);
      case Execution::kEager:
        return HostWork([launcher = launcher_, local, command] {
          ImmediateHostQueue queue;
          const auto launch = [&] { return launcher->Launch(local, command, Stream(&queue)); };
          return launcher->bindings().check_writes ? CheckHostWrites(launcher->bindings(), local, command, launch)
                                                   : launch();
        });
    }
    return absl::InternalError("unknown execution");
  }

  absl::StatusOr<HostWork> GraphWork(int local, const ScheduledCommand& command) const {
    RecordingQueue queue;
    REPRISE_RETURN_IF_ERROR(launcher_->Launch(local, command, Stream(&queue)));
    std::vector<std::function<void()>> enqueued = queue.Take();
    if (enqueued.empty()) return HostWork();
    return HostWork([enqueued = std::move(enqueued),
                     what = absl::StrCat("work that was enqueued on rank ", recording_.bindings->ranks[local])] {
      return WithoutExceptions(what, [&] {
        for (const std::function<void()>& work : enqueued) work();
        return absl::OkStatus();
      });
    });
  }

  const std::shared_ptr<const CommandLauncher> launcher_;
  const std::shared_ptr<HostRuns> runs_;
  RecordingProtocol protocol_;
  HostRecording recording_;
};

}  // namespace

std::unique_ptr<Recorder> NewHostRecorder(Execution execution, std::shared_ptr<const Bindings> bindings,
                                          std::shared_ptr<HostRuns> runs) {
  return std::make_unique<HostRecorder>(execution, std::move(bindings), std::move(runs));
}

}  // namespace reprise::internal
