// A world that passes all but profiles on to another, for tests that change or watch one thing.
#ifndef REPRISE_TESTS_GRAPH_FORWARDING_WORLD_H_
#define REPRISE_TESTS_GRAPH_FORWARDING_WORLD_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "graph/machine.h"

namespace reprise::testing {

class ForwardingWorld : public internal::Machine {
 public:
  explicit ForwardingWorld(std::shared_ptr<World> inner) : inner_(internal::MachineOf(std::move(inner))) {}

  int size() const override { return inner_->size(); }
  absl::Span<const int> local_ranks() const override { return inner_->local_ranks(); }
  absl::StatusOr<std::shared_ptr<internal::MemoryBlock>> Allocate(internal::MemoryKind kind,
                                                                  int64_t num_bytes) override {
    return inner_->Allocate(kind, num_bytes);
  }
  absl::Status CopyToRank(int local, void* destination, const void* source, int64_t num_bytes) override {
    return inner_->CopyToRank(local, destination, source, num_bytes);
  }
  absl::Status CopyToHost(int local, void* destination, const void* source, int64_t num_bytes) override {
    return inner_->CopyToHost(local, destination, source, num_bytes);
  }
  absl::Status FillBytes(int local, void* destination, uint8_t value, int64_t num_bytes) override {
    return inner_->FillBytes(local, destination, value, num_bytes);
  }
  absl::Status CheckUsable() const override { return inner_->CheckUsable(); }
  MemoryUse memory() const override { return inner_->memory(); }
  absl::Status Synchronize() override { return inner_->Synchronize(); }
  absl::Status CheckResults() override { return inner_->CheckResults(); }
  absl::StatusOr<std::vector<std::string>> ExchangeBytes(absl::string_view what,
                                                         absl::Span<const std::string> one_per_local_rank) override {
    return inner_->ExchangeBytes(what, one_per_local_rank);
  }
  absl::Status AgreeOn(absl::string_view what, const absl::Status& mine,
                       absl::Span<const internal::AgreedValue> values) override {
    return inner_->AgreeOn(what, mine, values);
  }
  absl::StatusOr<int64_t> Announce(absl::string_view what, const absl::Status& mine,
                                   absl::Span<const internal::AgreedValue> values) override {
    return inner_->Announce(what, mine, values);
  }
  absl::Status Announced(int64_t ticket) override { return inner_->Announced(ticket); }
  absl::Status Progress(int64_t ticket) override { return inner_->Progress(ticket); }
  absl::Status NoteLaunch(uint64_t key, absl::string_view what) override { return inner_->NoteLaunch(key, what); }
  int64_t num_exchanges() const override { return inner_->num_exchanges(); }
  void TellFailure(const absl::Status& status) override { inner_->TellFailure(status); }
  internal::AutoTransports auto_transports() const override { return inner_->auto_transports(); }
  absl::Status Tune() override { return inner_->Tune(); }
  absl::StatusOr<std::unique_ptr<Recorder>> NewRecorder(Execution execution,
                                                        std::shared_ptr<const Bindings> bindings) override {
    return inner_->NewRecorder(execution, std::move(bindings));
  }

 private:
  const std::shared_ptr<internal::Machine> inner_;
};

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_FORWARDING_WORLD_H_
