#include "tests/testing/process_world.h"

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "graph/comm/bootstrap.h"
#include "graph/command_error.h"
#include "graph/host/host_collectives.h"
#include "graph/launch_command.h"
#include "reprise/core/status_macros.h"
#include "reprise/graph/host_world.h"
#include "tests/graph/forwarding_world.h"

namespace reprise::testing {

// Bootstrap::Exchange for a rank that looks at other things while it waits, and at the clock.
class ExchangeInHalves {
 public:
  static absl::Status Start(internal::Bootstrap& ranks, const std::string& what, const std::string& mine) {
    return ranks.Start({.what = what}, mine);
  }
  // Nothing while ranks are missing.
  static absl::StatusOr<std::optional<std::vector<std::string>>> Take(internal::Bootstrap& ranks) {
    REPRISE_ASSIGN_OR_RETURN(const bool is_over, ranks.Look());
    if (!is_over) return std::nullopt;
    return std::move(ranks.parts_);
  }
};

namespace {

using internal::Bindings;
using internal::Bootstrap;
using internal::Executable;
using internal::HostWork;

// Shared by the world and its executables.
struct Process {
  std::shared_ptr<Bootstrap> calls, collectives;
  absl::Duration deadline;
  absl::Status failed = {};  // the first failure of a collective

  int rank() const { return calls->rank(); }
  int size() const { return calls->size(); }

  // What all ranks give to a collective.
  absl::StatusOr<std::vector<std::string>> Exchange(const std::string& what, const std::string& mine) {
    REPRISE_RETURN_IF_ERROR(failed);
    absl::StatusOr<std::vector<std::string>> all = ExchangeOrHear(what, mine);
    if (all.ok()) return all;
    // Why the other end of a connection is gone.
    const absl::Status heard = calls->CheckPeers();
    failed = heard.ok() ? all.status() : heard;
    calls->TellBroken(failed);
    return failed;
  }

 private:
  absl::StatusOr<std::vector<std::string>> ExchangeOrHear(const std::string& what, const std::string& mine) {
    REPRISE_RETURN_IF_ERROR(ExchangeInHalves::Start(*collectives, what, mine));
    const absl::Time start = absl::Now();
    absl::Time look = start + absl::Milliseconds(20);
    while (true) {
      REPRISE_ASSIGN_OR_RETURN(std::optional<std::vector<std::string>> all, ExchangeInHalves::Take(*collectives));
      if (all.has_value()) return *std::move(all);
      const absl::Time now = absl::Now();
      if (now - start > absl::Microseconds(200)) absl::SleepFor(absl::Microseconds(50));
      if (now < look) continue;
      look = now + absl::Milliseconds(20);
      REPRISE_RETURN_IF_ERROR(calls->CheckPeers());
      if (now - start < deadline) continue;
      return absl::DeadlineExceededError(
          absl::StrCat(what, " has not ended on rank ", rank(), " within ", absl::FormatDuration(deadline)));
    }
  }
};

// Keeps what is enqueued.
class KeepingQueue : public HostQueue {
 public:
  void Enqueue(std::function<void()> work) override { work_.push_back(std::move(work)); }
  std::vector<std::function<void()>> Take() { return std::move(work_); }

 private:
  std::vector<std::function<void()>> work_;
};

// A collective, as host ranks of one process run it, on copies of what the other ranks have.
class Collective {
 public:
  Collective(std::shared_ptr<Process> process, std::shared_ptr<const Bindings> bindings,
             const ScheduledCommand& command, std::string what)
      : process_(std::move(process)), mine_(std::move(bindings)), command_(command), what_(std::move(what)) {
    const Plan& plan = *mine_->plan;
    all_.plan = mine_->plan;
    for (int rank = 0; rank < process_->size(); ++rank) {
      all_.ranks.push_back(rank);
      if (rank == process_->rank()) {
        all_.addresses.push_back(mine_->addresses[0]);
        continue;
      }
      std::vector<std::byte*>& addresses = all_.addresses.emplace_back(plan.buffers.size(), nullptr);
      for (const BufferUse& use : command_.uses) {
        std::byte*& address = addresses[use.buffer.value()];
        if (address != nullptr) continue;
        // Of double, so that it is aligned for whatever lies there.
        copies_.emplace_back(static_cast<size_t>(plan.buffer(use.buffer).num_bytes) / sizeof(double) + 1);
        address = reinterpret_cast<std::byte*>(copies_.back().data());
      }
    }
  }

  absl::Status operator()() {
    REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> all, process_->Exchange(what_, Mine()));
    for (int rank = 0; rank < process_->size(); ++rank) {
      if (rank != process_->rank()) REPRISE_RETURN_IF_ERROR(Unpack(rank, all[rank]));
    }
    REPRISE_ASSIGN_OR_RETURN(const std::vector<HostWork> work, internal::CollectiveWork(all_, command_));
    return work[process_->rank()]();
  }

 private:
  // What other ranks may read.
  std::string Mine() const {
    std::string bytes;
    for (const BufferUse& use : command_.uses) {
      if (use.access == Access::kAssign || use.num_bytes == 0) continue;
      bytes.append(reinterpret_cast<const char*>(mine_->address(0, use)), static_cast<size_t>(use.num_bytes));
    }
    return bytes;
  }
  absl::Status Unpack(int rank, absl::string_view bytes) const {
    for (const BufferUse& use : command_.uses) {
      if (use.access == Access::kAssign || use.num_bytes == 0) continue;
      if (bytes.size() < static_cast<size_t>(use.num_bytes)) return absl::InternalError(what_ + ": too few bytes");
      std::memcpy(all_.address(rank, use), bytes.data(), static_cast<size_t>(use.num_bytes));
      bytes.remove_prefix(static_cast<size_t>(use.num_bytes));
    }
    return bytes.empty() ? absl::OkStatus() : absl::InternalError(what_ + ": too many bytes");
  }

  const std::shared_ptr<Process> process_;
  const std::shared_ptr<const Bindings> mine_;
  const ScheduledCommand& command_;  // of the plan
  const std::string what_;
  Bindings all_;
  std::vector<std::vector<double>> copies_;
};

class ProcessExecutable : public Executable {
 public:
  ProcessExecutable(std::shared_ptr<const Bindings> bindings, const Schedule& schedule, std::vector<HostWork> work)
      : bindings_(std::move(bindings)), schedule_(schedule), work_(std::move(work)) {}

  absl::Status Replay() override {
    for (size_t c = 0; c < work_.size() && status_.ok(); ++c) {
      status_ = internal::AtCommand(*bindings_->plan, CommandId(static_cast<int64_t>(c)), schedule_.commands[c].command,
                                    work_[c]());
    }
    return status_;
  }

 private:
  const std::shared_ptr<const Bindings> bindings_;
  const Schedule& schedule_;          // of the plan
  const std::vector<HostWork> work_;  // by command
  absl::Status status_;
};

class ProcessRecorder : public internal::Recorder {
 public:
  ProcessRecorder(Execution execution, std::shared_ptr<const Bindings> bindings, std::shared_ptr<Process> process)
      : Recorder(std::move(bindings)), execution_(execution), process_(std::move(process)) {}

 private:
  absl::Status Record(CommandId, const ScheduledCommand& command) override {
    REPRISE_ASSIGN_OR_RETURN(work_.emplace_back(), WorkOf(command));
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Executable>> Finish() override {
    return std::make_unique<ProcessExecutable>(bindings(), schedule(), std::move(work_));
  }

  absl::StatusOr<HostWork> WorkOf(const ScheduledCommand& command) const {
    if (IsCollective(command.command)) {
      const Plan& plan = *bindings()->plan;
      const std::string what = absl::StrCat(Describe(plan, command.command), " of ", schedule().name, " of plan ",
                                            plan.fingerprint.ToString());
      const auto collective = std::make_shared<Collective>(process_, bindings(), command, what);
      return HostWork([collective] { return (*collective)(); });
    }
    if (execution_ == Execution::kEager) {
      return HostWork([bindings = bindings(), &command] {
        ImmediateHostQueue queue;
        return internal::LaunchCommand(*bindings, 0, command, Stream(&queue));
      });
    }
    KeepingQueue queue;
    REPRISE_RETURN_IF_ERROR(internal::LaunchCommand(*bindings(), 0, command, Stream(&queue)));
    return HostWork([enqueued = queue.Take()] {
      for (const std::function<void()>& work : enqueued) work();
      return absl::OkStatus();
    });
  }

  const Execution execution_;
  const std::shared_ptr<Process> process_;
  std::vector<HostWork> work_;
};

// Memory and copies are those of a world of one host rank.
class ProcessWorld : public ForwardingWorld {
 public:
  ProcessWorld(const std::shared_ptr<World>& alone, std::shared_ptr<Process> process)
      : ForwardingWorld(alone, process->calls), process_(std::move(process)), ranks_({process_->rank()}) {}

  int size() const override { return process_->size(); }
  absl::Span<const int> local_ranks() const override { return ranks_; }
  absl::Status CheckUsable() const override { return process_->failed; }
  absl::Status Synchronize() override { return process_->failed; }

  absl::StatusOr<std::unique_ptr<internal::Recorder>> NewRecorder(Execution execution,
                                                                  std::shared_ptr<const Bindings> bindings) override {
    REPRISE_RETURN_IF_ERROR(CheckRecordable(execution, bindings.get()));
    return std::make_unique<ProcessRecorder>(execution, std::move(bindings), process_);
  }

 private:
  const std::shared_ptr<Process> process_;
  const std::vector<int> ranks_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<World>> CreateProcessWorld(const LaunchEnvironment& launch, absl::Duration deadline) {
  REPRISE_ASSIGN_OR_RETURN(std::shared_ptr<World> alone, CreateHostWorld({.size = 1}));
  auto process = std::make_shared<Process>();
  process->deadline = deadline;
  REPRISE_ASSIGN_OR_RETURN(process->calls, Bootstrap::Connect(launch, deadline));
  LaunchEnvironment collectives = launch;
  collectives.job += " collectives";
  REPRISE_ASSIGN_OR_RETURN(process->collectives, Bootstrap::Connect(collectives, deadline));
  return std::make_shared<ProcessWorld>(std::move(alone), std::move(process));
}

}  // namespace reprise::testing
