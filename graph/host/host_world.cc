#include "reprise/graph/host_world.h"

#include <cstring>
#include <new>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/host/host_profile.h"
#include "graph/host/host_recorder.h"
#include "graph/in_use.h"
#include "graph/machine.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

using internal::AutoTransports;
using internal::MemoryBlock;
using internal::MemoryKind;

constexpr int kMaxHostRanks = 1024;

struct AlignedDelete {
  void operator()(std::byte* bytes) const {
    ::operator delete (bytes, std::align_val_t{static_cast<size_t>(kBufferAlignment)});
  }
};
using AlignedBytes = std::unique_ptr<std::byte, AlignedDelete>;

class HostMemory : public MemoryBlock {
 public:
  HostMemory(int64_t num_bytes, std::vector<AlignedBytes> ranks) : num_bytes_(num_bytes), ranks_(std::move(ranks)) {}
  int64_t num_bytes() const override { return num_bytes_; }
  std::byte* address(int local) const override {
    return local >= 0 && static_cast<size_t>(local) < ranks_.size() ? ranks_[local].get() : nullptr;
  }

 private:
  const int64_t num_bytes_;
  const std::vector<AlignedBytes> ranks_;
};

class HostWorld : public internal::Machine {
 public:
  explicit HostWorld(const HostWorldOptions& options) : ranks_(options.size) {
    std::iota(ranks_.begin(), ranks_.end(), 0);
    runs_->order = options.order;
    runs_->threads = options.threads;
    runs_->random = internal::SplitMix64(options.seed);
  }

  int size() const override { return static_cast<int>(ranks_.size()); }
  absl::Span<const int> local_ranks() const override { return ranks_; }

  AutoTransports auto_transports() const override { return {.reason = "host ranks treat all transports alike"}; }

  absl::StatusOr<std::shared_ptr<MemoryBlock>> Allocate(MemoryKind, int64_t num_bytes) override {
    if (num_bytes < 0) return absl::InvalidArgumentError(absl::StrCat("memory of ", num_bytes, " bytes was asked for"));
    std::vector<AlignedBytes> ranks(ranks_.size());
    for (size_t rank = 0; num_bytes > 0 && rank < ranks.size(); ++rank) {
      ranks[rank].reset(static_cast<std::byte*>(
          ::operator new (static_cast<size_t>(num_bytes), std::align_val_t{kBufferAlignment}, std::nothrow)));
      if (ranks[rank] == nullptr) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "no host memory for ", num_bytes, " bytes of rank ", rank, " of ", ranks.size(),
            ", all of which this process holds; use a smaller model, fewer ranks or a machine with more memory"));
      }
      std::memset(ranks[rank].get(), 0xff, static_cast<size_t>(num_bytes));
    }
    return std::make_shared<HostMemory>(num_bytes, std::move(ranks));
  }

  absl::Status CopyToRank(int local, void* destination, const void* source, int64_t num_bytes) override {
    return Copy(local, destination, source, num_bytes);
  }
  absl::Status CopyToHost(int local, void* destination, const void* source, int64_t num_bytes) override {
    return Copy(local, destination, source, num_bytes);
  }
  absl::Status FillBytes(int local, void* destination, uint8_t value, int64_t num_bytes) override {
    REPRISE_RETURN_IF_ERROR(CheckAccess(local, destination, destination, num_bytes));
    if (num_bytes > 0) std::memset(destination, value, static_cast<size_t>(num_bytes));
    return absl::OkStatus();
  }
  // Replays are done, and have returned their errors, when they return.
  absl::Status Synchronize() override {
    REPRISE_ENTER(*this, "World::Synchronize");
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<internal::Recorder>> NewRecorder(
      Execution execution, std::shared_ptr<const internal::Bindings> bindings) override {
    REPRISE_RETURN_IF_ERROR(CheckRecordable(execution, bindings.get()));
    return internal::NewHostRecorder(execution, std::move(bindings), runs_);
  }

 private:
  absl::Status BeginProfile(const Fingerprint& fingerprint) override {
    runs_->profile = std::make_shared<internal::HostProfile>(fingerprint);
    return absl::OkStatus();
  }
  absl::StatusOr<LocalProfile> EndProfile() override {
    return LocalProfile{.timeline = std::exchange(runs_->profile, nullptr)->timeline()};
  }

  absl::Status Copy(int local, void* destination, const void* source, int64_t num_bytes) const {
    REPRISE_RETURN_IF_ERROR(CheckAccess(local, destination, source, num_bytes));
    if (num_bytes > 0) std::memcpy(destination, source, static_cast<size_t>(num_bytes));
    return absl::OkStatus();
  }

  std::vector<int> ranks_;
  const std::shared_ptr<internal::HostRuns> runs_ = std::make_shared<internal::HostRuns>();
};

}  // namespace

absl::StatusOr<std::shared_ptr<World>> CreateHostWorld(const HostWorldOptions& options) {
  if (options.size < 1 || options.size > kMaxHostRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("the number of host ranks is ", options.size, " but must be between 1 and ", kMaxHostRanks));
  }
  if (options.threads < 0) {
    return absl::InvalidArgumentError(absl::StrCat("the number of threads of host ranks is ", options.threads,
                                                   " but must be positive, or 0 for all cores"));
  }
  switch (options.order) {
    case ReplayOrder::kIssue:
    case ReplayOrder::kAdversarial:
    case ReplayOrder::kThreads:
      return std::make_shared<HostWorld>(options);
  }
  return absl::InvalidArgumentError(absl::StrCat("HostWorldOptions::order is ", static_cast<int>(options.order),
                                                 ", which is no ReplayOrder; use kIssue, kAdversarial or kThreads"));
}

}  // namespace reprise
