#include "reprise/graph/cuda_world.h"

#include <unistd.h>

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/model/quoted.h"
#include "graph/comm/nccl_settings.h"
#include "graph/cuda/costs.h"
#include "graph/cuda/cuda_memory.h"
#include "graph/cuda/cuda_rank.h"
#include "graph/cuda/cuda_recorder.h"
#include "graph/cuda/cuda_transport.h"
#include "graph/cuda/nccl_status.h"
#include "graph/cuda/upload.h"
#include "graph/in_use.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

using internal::AutoTransports;
using internal::Bootstrap;
using internal::CallerState;
using internal::CudaRank;
using internal::MemoryBlock;
using internal::MemoryKind;
using internal::NcclStatus;
using kernels::CudaStatus;

class CudaWorld;
// (c) Takes the device, and makes the communicators.
absl::Status OpenWorld(CudaWorld& world, const std::shared_ptr<Bootstrap>& bootstrap, const LaunchEnvironment& launch,
                       const CudaWorldOptions& options);

class CudaWorld : public internal::Machine {
 public:
  CudaWorld(std::shared_ptr<Bootstrap> bootstrap, const LaunchEnvironment& launch, const CudaWorldOptions& options)
      : Machine(bootstrap->size() > 1 ? bootstrap : nullptr),
        bootstrap_(std::move(bootstrap)),
        launch_(launch),
        options_(options) {
    options_.parent = nullptr;  // the caller's, for the time of the creation
    ranks_.push_back(bootstrap_->rank());
  }

  void Open(std::shared_ptr<CudaRank> rank, CostFile machine) {
    rank_ = std::move(rank);
    machine_ = std::move(machine);
    upload_ = std::make_unique<internal::Upload>(rank_, rank_->lanes().launch_stream());
    staging_ = std::make_unique<internal::Upload>(rank_, rank_->queue().staging_stream());
  }
  CudaRank& rank() { return *rank_; }

  int size() const override { return bootstrap_->size(); }
  absl::Span<const int> local_ranks() const override { return ranks_; }

  absl::StatusOr<std::shared_ptr<MemoryBlock>> Allocate(MemoryKind kind, int64_t num_bytes) override {
    return internal::AllocateCudaMemory(rank_, kind, num_bytes);
  }

  absl::Status CopyToRank(int local, void* destination, const void* source, int64_t num_bytes) override {
    REPRISE_RETURN_IF_ERROR(CheckUsableFor(local, destination, source, num_bytes));
    return upload_->Copy(destination, source, num_bytes);
  }

  absl::Status StageToRank(int local, void* destination, const void* source, int64_t num_bytes) override {
    REPRISE_RETURN_IF_ERROR(CheckUsableFor(local, destination, source, num_bytes));
    REPRISE_RETURN_IF_ERROR(rank_->queue().BeginStaging());
    return staging_->Copy(destination, source, num_bytes);
  }

  absl::Status CopyToHost(int local, void* destination, const void* source, int64_t num_bytes) override {
    REPRISE_RETURN_IF_ERROR(CheckUsableFor(local, destination, source, num_bytes));
    REPRISE_RETURN_IF_ERROR(rank_->queue().Wait());
    if (num_bytes == 0) return absl::OkStatus();
    const CallerState caller(rank_->device());
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(destination, source, static_cast<size_t>(num_bytes),
                                                       cudaMemcpyDeviceToHost, rank_->lanes().launch_stream()),
                                       "copying from the device"));
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaStreamSynchronize(rank_->lanes().launch_stream()), "copying from the device"));
    return rank_->queue().CheckResults();  // what lies in memory that other ranks write may have changed since the wait
  }

  absl::Status FillBytes(int local, void* destination, uint8_t value, int64_t num_bytes) override {
    REPRISE_RETURN_IF_ERROR(CheckUsableFor(local, destination, destination, num_bytes));
    if (num_bytes == 0) return absl::OkStatus();
    const CallerState caller(rank_->device());
    return CudaStatus(
        cudaMemsetAsync(destination, value, static_cast<size_t>(num_bytes), rank_->lanes().launch_stream()),
        "filling device memory");
  }

  absl::Status Synchronize() override {
    REPRISE_ENTER(*this, "World::Synchronize");
    return rank_->queue().Wait();
  }
  absl::Status CheckResults() override { return rank_->queue().CheckResults(); }

  absl::StatusOr<std::unique_ptr<internal::Recorder>> NewRecorder(
      Execution execution, std::shared_ptr<const internal::Bindings> bindings) override {
    REPRISE_RETURN_IF_ERROR(CheckRecordable(execution, bindings.get()));
    REPRISE_RETURN_IF_ERROR(internal::PrepareTransports(*this, rank_, *bindings));
    return internal::NewCudaRecorder(execution, std::move(bindings), rank_);
  }

  absl::StatusOr<CostFile> Measure(const MeasureOptions& options) override {
    CostFile file = machine_;
    // In a world of its own: what windows take stays with their world, and collectives on them cannot be aborted.
    const auto try_transports = [&](internal::Progress progress) -> absl::StatusOr<internal::TransportTimes> {
      const auto trial = std::make_shared<CudaWorld>(bootstrap_, launch_, options_);
      REPRISE_RETURN_IF_ERROR(OpenWorld(*trial, bootstrap_, launch_, options_));
      return internal::TryTransports(trial, trial->rank(), progress);
    };
    REPRISE_ASSIGN_OR_RETURN(transports_, internal::MeasureChoices(*this, *rank_, options, try_transports, file));
    return file;
  }
  absl::Status UseCostFile(const std::string& path) {
    REPRISE_ASSIGN_OR_RETURN(transports_, internal::UseCostFile(*this, *rank_, machine_, path));
    return absl::OkStatus();
  }

  AutoTransports auto_transports() const override {
    AutoTransports proposed = transports_;
    proposed.sum = rank_->one_host() ? Sum::kRankOrder : Sum::kNccl;
    return proposed;
  }

  absl::Status CheckUsable() const override { return rank_->queue().CheckUsable(); }
  MemoryUse memory() const override {
    const internal::Entry entry(*this, "World::memory");
    const CallerState caller(rank_->device());
    return entry.ok() ? rank_->account().use() : MemoryUse();
  }
  absl::Status BeginProfile(const Fingerprint& plan) override { return rank_->StartProfile(plan); }
  absl::StatusOr<LocalProfile> EndProfile() override {
    LocalProfile profile;
    REPRISE_ASSIGN_OR_RETURN(profile.timeline, rank_->StopProfile(profile.origin_ns));
    return profile;
  }

 private:
  absl::Status CheckUsableFor(int local, const void* a, const void* b, int64_t num_bytes) const {
    REPRISE_RETURN_IF_ERROR(CheckAccess(local, a, b, num_bytes));
    return rank_->queue().CheckUsable();
  }

  const std::shared_ptr<Bootstrap> bootstrap_;
  const LaunchEnvironment launch_;
  CudaWorldOptions options_;
  CostFile machine_;  // what one made here is for
  AutoTransports transports_ = {.reason = "the default: no CudaWorldOptions::cost_file"};
  std::vector<int> ranks_;
  std::shared_ptr<CudaRank> rank_;
  std::unique_ptr<internal::Upload> upload_, staging_;
};

// ---- what must be equal, or different, on all ranks ----

struct Facts {
  std::string nccl_version, settings, costs, sharing, device;
};

absl::StatusOr<Facts> FactsOf(const LaunchEnvironment& launch, const CostFile& machine, const CudaWorldOptions& options,
                              int device) {
  const CallerState caller(device);
  Facts facts;
  facts.nccl_version = machine.job.at("nccl");
  facts.settings = internal::ToBytes(launch.nccl_settings);
  facts.costs = "no cost file";
  if (!options.cost_file.empty()) {
    facts.costs = "a cost file on";
    for (const auto& [name, value] : machine.device) absl::StrAppend(&facts.costs, " ", name, " ", value);
  }
  facts.sharing = options.share_device ? "true" : "false";
  cudaDeviceProp properties;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, device), "asking for the device"));
  facts.device = absl::StrCat("device ", absl::BytesToHexString(absl::string_view(properties.uuid.bytes, 16)));
  return facts;
}

// "rank 0 has A, but rank 1 has B" if some rank differs from rank 0.
absl::Status CheckEqual(absl::string_view what, const std::vector<std::string>& by_rank, absl::string_view remedy) {
  for (size_t rank = 1; rank < by_rank.size(); ++rank) {
    if (by_rank[rank] == by_rank[0]) continue;
    return absl::FailedPreconditionError(absl::StrCat("ranks differ in ", what, ": rank 0 has ", by_rank[0],
                                                      ", but rank ", rank, " has ", by_rank[rank], "; ", remedy));
  }
  return absl::OkStatus();
}

absl::Status CheckApart(const std::vector<std::string>& devices) {
  std::map<std::string, size_t> first;
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    const auto [entry, is_new] = first.emplace(devices[rank], rank);
    if (is_new) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("ranks ", entry->second, " and ", rank, " share ", devices[rank],
                     ", and NCCL takes one rank per device; start as many ranks as there are devices, or set "
                     "CudaWorldOptions::device (for tests on one GPU, share_device)"));
  }
  return absl::OkStatus();
}

absl::Status CheckFacts(CudaWorld& world, const Facts& facts, bool share_device) {
  const auto exchange = [&](absl::string_view what, const std::string& mine) {
    return world.ExchangeBytes(absl::StrCat("comparing ", what), {&mine, 1});
  };
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> versions, exchange("NCCL", facts.nccl_version));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> settings, exchange("NCCL settings", facts.settings));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> costs, exchange("cost files", facts.costs));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> sharing, exchange("sharing of devices", facts.sharing));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> devices, exchange("devices", facts.device));
  REPRISE_RETURN_IF_ERROR(CheckEqual("NCCL", versions, "start every rank with the same library"));
  REPRISE_RETURN_IF_ERROR(internal::CheckSameNcclSettings(settings));
  REPRISE_RETURN_IF_ERROR(CheckEqual(
      "cost files", costs,
      "set CudaWorldOptions::cost_file on every rank, where all have the same GPU and libraries, or on none"));
  REPRISE_RETURN_IF_ERROR(CheckEqual("CudaWorldOptions::share_device", sharing, "set it on every rank or on none"));
  return share_device ? absl::OkStatus() : CheckApart(devices);
}

// ---- creation ----

absl::StatusOr<int> ChooseDevice(const LaunchEnvironment& launch, const CudaWorldOptions& options) {
  const int devices = NumCudaDevices();
  const int device = options.device >= 0 ? options.device : DeviceOf(launch, options.share_device);
  if (devices == 0) {
    return absl::UnavailableError("no CUDA device is usable here; check the driver by nvidia-smi, or use a HostWorld");
  }
  if (device < devices) return device;
  return absl::UnavailableError(
      absl::StrCat("device ", device, " was asked for, but this process sees ", devices,
                   "; start at most that many ranks on a host, or widen CUDA_VISIBLE_DEVICES"));
}

// From this version on NCCL takes ranks of one host that share a device.
constexpr int kFirstSharingVersion = 23000;

absl::Status CheckSharing(const LaunchEnvironment& launch) {
  int version = 0;
  REPRISE_RETURN_IF_ERROR(NcclStatus(ncclGetVersion(&version), "asking for NCCL's version"));
  if (version >= kFirstSharingVersion || launch.local_size <= NumCudaDevices()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(launch.local_size, " ranks of one host cannot share ", NumCudaDevices(), " devices with NCCL ",
                   internal::NcclVersionName(version), ", which takes one rank per device; NCCL ",
                   internal::NcclVersionName(kFirstSharingVersion),
                   " and later take more if NCCL_MULTI_RANK_GPU_ENABLE=1 is set before it is first used"));
}

absl::Status CheckParent(ncclComm_t parent, const LaunchEnvironment& launch) {
  if (parent == nullptr) return absl::OkStatus();
  int rank = 0, size = 0;
  REPRISE_RETURN_IF_ERROR(NcclStatus(ncclCommUserRank(parent, &rank), "asking the caller's communicator"));
  REPRISE_RETURN_IF_ERROR(NcclStatus(ncclCommCount(parent, &size), "asking the caller's communicator"));
  if (rank == launch.rank && size == launch.size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("CudaWorldOptions::parent is rank ", rank, " of ", size,
                                                 ", but the launch environment says rank ", launch.rank, " of ",
                                                 launch.size, "; pass a communicator of all ranks, in their order"));
}

absl::Status OpenWorld(CudaWorld& world, const std::shared_ptr<Bootstrap>& bootstrap, const LaunchEnvironment& launch,
                       const CudaWorldOptions& options) {
  const auto open = [&]() -> absl::StatusOr<Facts> {
    REPRISE_ASSIGN_OR_RETURN(const int device, ChooseDevice(launch, options));
    REPRISE_RETURN_IF_ERROR(CheckParent(options.parent, launch));
    if (options.share_device) REPRISE_RETURN_IF_ERROR(CheckSharing(launch));
    REPRISE_ASSIGN_OR_RETURN(std::shared_ptr<CudaRank> rank,
                             CudaRank::Create(device, launch.local_size == launch.size, options, bootstrap));
    REPRISE_RETURN_IF_ERROR(rank->queue().CheckUsable());
    REPRISE_ASSIGN_OR_RETURN(CostFile machine, internal::FileFor(device, launch));
    REPRISE_ASSIGN_OR_RETURN(Facts facts, FactsOf(launch, machine, options, device));
    world.Open(std::move(rank), std::move(machine));
    return facts;
  };
  const absl::StatusOr<Facts> facts = open();
  REPRISE_RETURN_IF_ERROR(world.Agree("opening the device", facts.status(), {}));
  REPRISE_RETURN_IF_ERROR(CheckFacts(world, *facts, options.share_device));
  REPRISE_RETURN_IF_ERROR(internal::ShareGaveUpWord(world, world.rank()));
  if (options.parent != nullptr) return internal::SplitCommunicators(world, world.rank(), options.parent);
  return internal::MakeCommunicators(world, world.rank());
}

}  // namespace

int NumCudaDevices() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess) return devices;
  cudaGetLastError();
  return 0;
}

int DeviceOf(const LaunchEnvironment& launch, bool share_device) {
  const int devices = NumCudaDevices();
  if (devices == 1) return 0;
  return share_device && devices > 0 ? launch.local_rank % devices : launch.local_rank;
}

absl::StatusOr<std::shared_ptr<World>> CreateCudaWorld(const LaunchEnvironment& launch,
                                                       const CudaWorldOptions& options) {
  if (options.deadline <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("CudaWorldOptions::deadline is ",
                                                   absl::FormatDuration(options.deadline), " but must be positive"));
  }
  if (options.device < -1) {
    return absl::InvalidArgumentError(absl::StrCat("CudaWorldOptions::device is ", options.device,
                                                   " but must be a device's number, or -1 for the rank's own"));
  }
  REPRISE_ASSIGN_OR_RETURN(std::shared_ptr<Bootstrap> bootstrap, Bootstrap::Connect(launch, options.deadline));
  auto world = std::make_shared<CudaWorld>(bootstrap, launch, options);
  REPRISE_RETURN_IF_ERROR(OpenWorld(*world, bootstrap, launch, options));
  if (!options.cost_file.empty()) REPRISE_RETURN_IF_ERROR(world->UseCostFile(options.cost_file));
  return std::shared_ptr<World>(std::move(world));
}

}  // namespace reprise
