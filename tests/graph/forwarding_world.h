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
  explicit ForwardingWorld(const std::shared_ptr<World>& inner)
      : ForwardingWorld(inner, internal::MachineOf(*inner).ranks()) {}
  // Reaches other ranks by `ranks`.
  ForwardingWorld(const std::shared_ptr<World>& inner, std::shared_ptr<internal::Bootstrap> ranks)
      : Machine(std::move(ranks)), inner_(internal::MachineOf(inner)) {}

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
  internal::AutoTransports auto_transports() const override { return inner_->auto_transports(); }
  absl::StatusOr<std::unique_ptr<internal::Recorder>> NewRecorder(
      Execution execution, std::shared_ptr<const internal::Bindings> bindings) override {
    return inner_->NewRecorder(execution, std::move(bindings));
  }

 private:
  const std::shared_ptr<internal::Machine> inner_;
};

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_FORWARDING_WORLD_H_
