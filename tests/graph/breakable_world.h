// A world of host ranks whose memory can run out and whose replays can fail, and that notes what it is asked for.
#ifndef REPRISE_TESTS_GRAPH_BREAKABLE_WORLD_H_
#define REPRISE_TESTS_GRAPH_BREAKABLE_WORLD_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/core/control_block.h"
#include "reprise/core/status_macros.h"
#include "reprise/graph/host_world.h"
#include "tests/graph/forwarding_world.h"

namespace reprise::testing {

class BreakableWorld : public ForwardingWorld {
 public:
  explicit BreakableWorld(int size) : ForwardingWorld(*CreateHostWorld({.size = size})) {}

  // The error of every replay from then on.
  void BreakReplays(absl::Status error) { record_->error = std::move(error); }
  // What CheckResults answers from then on.
  void BreakResults(absl::Status error) { results_ = std::move(error); }
  // From then on this local rank's control block says that its step is another one.
  void MakeStepsDiffer(int local) { differing_ = local; }
  // Allocations fail once they would come to more.
  void LimitBytes(int64_t num_bytes) { limit_ = num_bytes; }
  int64_t allocated_bytes() const { return allocated_; }
  // Names of the schedules replayed since the last call.
  std::vector<std::string> TakeReplayed() { return std::exchange(record_->replayed, {}); }

  absl::Status CheckResults() override { return results_.ok() ? ForwardingWorld::CheckResults() : results_; }
  absl::StatusOr<std::shared_ptr<internal::MemoryBlock>> Allocate(internal::MemoryKind kind,
                                                                  int64_t num_bytes) override {
    if (allocated_ + num_bytes > limit_) {
      return absl::ResourceExhaustedError(absl::StrCat("no room for ", num_bytes, " bytes"));
    }
    allocated_ += num_bytes;
    return ForwardingWorld::Allocate(kind, num_bytes);
  }
  absl::Status CopyToRank(int local, void* destination, const void* source, int64_t num_bytes) override {
    if (local != differing_ || num_bytes != sizeof(ControlBlock)) {
      return ForwardingWorld::CopyToRank(local, destination, source, num_bytes);
    }
    ControlBlock control = *static_cast<const ControlBlock*>(source);
    control.agreed ^= 1;
    return ForwardingWorld::CopyToRank(local, destination, &control, num_bytes);
  }
  absl::StatusOr<std::unique_ptr<internal::Recorder>> NewRecorder(
      Execution execution, std::shared_ptr<const internal::Bindings> bindings) override {
    REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<internal::Recorder> recorder,
                             ForwardingWorld::NewRecorder(execution, bindings));
    return std::make_unique<BreakableRecorder>(std::move(bindings), std::move(recorder), record_);
  }

 private:
  struct Replays {
    absl::Status error;
    std::vector<std::string> replayed;
  };
  class BreakableExecutable : public internal::Executable {
   public:
    BreakableExecutable(std::unique_ptr<internal::Executable> inner, std::string name, std::shared_ptr<Replays> record)
        : inner_(std::move(inner)), name_(std::move(name)), record_(std::move(record)) {}
    absl::Status Replay() override {
      record_->replayed.push_back(name_);
      return record_->error.ok() ? inner_->Replay() : record_->error;
    }

   private:
    std::unique_ptr<internal::Executable> inner_;
    std::string name_;
    std::shared_ptr<Replays> record_;
  };
  class BreakableRecorder : public internal::Recorder {
   public:
    BreakableRecorder(std::shared_ptr<const internal::Bindings> bindings, std::unique_ptr<internal::Recorder> inner,
                      std::shared_ptr<Replays> record)
        : Recorder(std::move(bindings)), inner_(std::move(inner)), record_(std::move(record)) {}

   private:
    absl::StatusOr<std::unique_ptr<internal::Executable>> Finish() override {
      REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<internal::Executable> executable, RecordSchedule(index(), *inner_));
      return std::make_unique<BreakableExecutable>(std::move(executable), schedule().name, record_);
    }

    const std::unique_ptr<internal::Recorder> inner_;
    const std::shared_ptr<Replays> record_;
  };

  std::shared_ptr<Replays> record_ = std::make_shared<Replays>();
  absl::Status results_;
  int differing_ = -1;
  int64_t limit_ = int64_t{1} << 40, allocated_ = 0;
};

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_BREAKABLE_WORLD_H_
