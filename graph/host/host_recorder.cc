#include "graph/host/host_recorder.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/check_writes.h"
#include "graph/command_error.h"
#include "graph/compute_binding.h"
#include "graph/digest.h"
#include "graph/find_non_finite.h"
#include "graph/host/host_collectives.h"
#include "graph/host/host_executable.h"
#include "graph/launch_command.h"
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

class HostProbe : public MemoryProbe {
 public:
  absl::Status Fill(void* to, uint8_t value, int64_t num_bytes) override {
    std::memset(to, value, static_cast<size_t>(num_bytes));
    return absl::OkStatus();
  }
  absl::Status Read(void* to_host, const void* from, int64_t num_bytes) override {
    std::memcpy(to_host, from, static_cast<size_t>(num_bytes));
    return absl::OkStatus();
  }
  absl::Status Write(void* to, const void* from_host, int64_t num_bytes) override {
    return Read(to, from_host, num_bytes);
  }
  absl::StatusOr<uint64_t> Digest(const void* from, int64_t num_bytes) override {
    const std::byte* const bytes = static_cast<const std::byte*>(from);
    uint64_t digest = 0;
    int64_t at = 0;
    for (; at + kDigestWord <= num_bytes; at += kDigestWord) {
      uint64_t word;
      std::memcpy(&word, bytes + at, kDigestWord);
      digest += MixWord(word, at / kDigestWord);
    }
    if (at < num_bytes) digest += MixWord(WordAt(bytes + at, num_bytes - at), at / kDigestWord);
    return digest;
  }
};

std::string NameOfWork(const Bindings& bindings, int local) {
  return absl::StrCat("work that was enqueued on rank ", bindings.ranks[local]);
}

absl::Status RunAll(absl::string_view what, const std::vector<std::function<void()>>& enqueued) {
  return WithoutExceptions(what, [&] {
    for (const std::function<void()>& work : enqueued) work();
    return absl::OkStatus();
  });
}

class HostRecorder : public Recorder {
 public:
  HostRecorder(Execution execution, std::shared_ptr<const Bindings> bindings, std::shared_ptr<HostRuns> runs)
      : Recorder(bindings),
        runs_(std::move(runs)),
        recording_{.bindings = std::move(bindings), .execution = execution} {}

 private:
  absl::Status Begin() override {
    recording_.index = index();
    return absl::OkStatus();
  }
  absl::Status Record(CommandId id, const ScheduledCommand& command) override {
    REPRISE_ASSIGN_OR_RETURN(recording_.work.emplace_back(), WorkOf(id, command));
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Executable>> Finish() override {
    return NewHostExecutable(std::move(recording_), runs_);
  }

  absl::StatusOr<std::vector<HostWork>> WorkOf(CommandId id, const ScheduledCommand& command) const {
    if (IsCollective(command.command)) return CollectiveWork(*bindings(), command);
    std::vector<HostWork> work;
    for (int local = 0; local < recording_.ranks(); ++local) {
      REPRISE_ASSIGN_OR_RETURN(work.emplace_back(), LocalWork(local, id, command));
    }
    return work;
  }

  absl::StatusOr<HostWork> LocalWork(int local, CommandId id, const ScheduledCommand& command) const {
    switch (recording_.execution) {
      case Execution::kGraph:
        return GraphWork(local, id, command);
      case Execution::kEager:
        return HostWork([bindings = bindings(), schedule = index(), local, id, &command] {
          return RunEagerly(*bindings, schedule, local, id, command);
        });
    }
    return absl::InternalError("unknown execution");
  }

  static absl::Status RunEagerly(const Bindings& bindings, int schedule, int local, CommandId id,
                                 const ScheduledCommand& command) {
    HostProbe probe;
    if (bindings.check_writes && IsCompute(command.command)) {
      std::vector<std::function<void()>> enqueued;
      const auto enqueue = [&](bool) {
        RecordingQueue queue;
        REPRISE_RETURN_IF_ERROR(LaunchCommand(bindings, local, command, Stream(&queue)));
        enqueued = queue.Take();
        return absl::OkStatus();
      };
      const auto execute = [&] { return RunAll(NameOfWork(bindings, local), enqueued); };
      std::vector<uint64_t> digests;
      REPRISE_RETURN_IF_ERROR(
          CheckWrites(bindings, local, command, probe, {.enqueue = enqueue, .execute = execute}, &digests));
      if (bindings.write_digests != nullptr) bindings.write_digests->Add(schedule, id, local, std::move(digests));
      return absl::OkStatus();
    }
    ImmediateHostQueue queue;
    const auto launch = [&] { return LaunchCommand(bindings, local, command, Stream(&queue)); };
    return bindings.non_finite == nullptr ? launch() : FindNonFinite(bindings, local, id, command, probe, launch);
  }

  absl::StatusOr<HostWork> GraphWork(int local, CommandId id, const ScheduledCommand& command) const {
    RecordingQueue queue;
    REPRISE_RETURN_IF_ERROR(LaunchCommand(*bindings(), local, command, Stream(&queue)));
    std::vector<std::function<void()>> enqueued = queue.Take();
    const bool is_checked = IsCompute(command.command) && bindings()->write_digests != nullptr;
    if (enqueued.empty() && !is_checked) return HostWork();
    const auto run = [what = NameOfWork(*bindings(), local), enqueued = std::move(enqueued)] {
      return RunAll(what, enqueued);
    };
    if (!is_checked) return HostWork(run);
    return HostWork([run, bindings = bindings(), checks = recording_.checks, schedule = index(), local, id, &command] {
      if (!*checks) return run();
      const std::vector<uint64_t> digests = bindings->write_digests->Take(schedule, id, local);
      HostProbe probe;
      return digests.empty() ? run() : CheckRecordedWrites(*bindings, local, command, probe, run, digests);
    });
  }

  const std::shared_ptr<HostRuns> runs_;
  HostRecording recording_;
};

}  // namespace

std::unique_ptr<Recorder> NewHostRecorder(Execution execution, std::shared_ptr<const Bindings> bindings,
                                          std::shared_ptr<HostRuns> runs) {
  return std::make_unique<HostRecorder>(execution, std::move(bindings), std::move(runs));
}

}  // namespace reprise::internal
