#include "graph/cuda/costs.h"

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/cuda/caller_state.h"
#include "graph/cuda/cuda_memory.h"
#include "graph/cuda/cuda_transport.h"
#include "graph/cuda/handles.h"
#include "graph/cuda/nccl_status.h"
#include "graph/cuda/peer_copies.h"
#include "graph/cuda/transport_trial.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

using kernels::CudaStatus;

// (c) Rank 0's file, from its text, on every rank.
absl::StatusOr<CostFile> FromRank0(Machine& world, const CudaRank& rank, absl::string_view phase,
                                   absl::FunctionRef<absl::StatusOr<std::string>()> make) {
  const absl::StatusOr<std::string> mine = rank.rank() == 0 ? make() : std::string();
  REPRISE_RETURN_IF_ERROR(world.Agree(phase, mine.status(), {}));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> all, world.ExchangeBytes(phase, {*mine}));
  return CostFileFromJson(all[0]);
}

// Of each device.
constexpr int64_t kTrafficBytes = int64_t{64} << 20;
// Enough that the copy engines do not wait for the host, and few enough to stop soon.
constexpr int kCopiesAtOnce = 8;

// Each rank writes its own part of the block, everywhere.
absl::Status CopyUntil(const std::atomic<bool>& stops, CudaRank& rank, const MemoryBlock& block) {
  const CallerState caller(rank.device());
  StreamHandle stream;
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithFlags(stream.receive(), cudaStreamNonBlocking), "creating a stream of copies"));
  const int64_t part = kTrafficBytes / rank.size();
  std::byte* const mine = block.address(0) + rank.rank() * part;
  std::vector<PeerCopy> copies;
  for (int peer = 0; peer < rank.size(); ++peer) {
    if (peer != rank.rank()) copies.push_back({PeerAddress(block, mine, peer), mine, part});
  }
  while (!stops) {
    for (int i = 0; i < kCopiesAtOnce; ++i) REPRISE_RETURN_IF_ERROR(Copy(copies, stream.get()));
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream.get()), "copying to other ranks"));
  }
  return absl::OkStatus();
}

// (c) Measures while every rank's device writes to every other one's memory, where WhyNoWindows found that they can: a
// schedule's GEMMs run beside copies too.
absl::Status BesideCopies(Machine& world, CudaRank& rank, absl::FunctionRef<absl::Status()> measure) {
  if (rank.size() == 1 || rank.communicators().why_no_windows() != "") return measure();
  const auto agree = [&](const absl::Status& status) {
    return world.Agree("preparing to choose kernels beside copies", status, {});
  };
  const absl::StatusOr<std::shared_ptr<MemoryBlock>> block =
      AllocateCudaMemory(rank.shared_from_this(), MemoryKind::kCommunicating, kTrafficBytes);
  REPRISE_RETURN_IF_ERROR(agree(block.status()));
  REPRISE_RETURN_IF_ERROR(CheckWindows(world, rank));
  REPRISE_RETURN_IF_ERROR(agree(RegisterWindow(*block, Lane::kAllGather)));
  REPRISE_RETURN_IF_ERROR(agree(FindPeers(**block)));
  std::atomic<bool> stops = false;
  absl::Status copied;
  std::thread thread([&] { copied = CopyUntil(stops, rank, **block); });
  const absl::Status measured = measure();
  stops = true;
  thread.join();
  const absl::Status ended = world.Agree("ending copies", copied, {});  // before the block is freed
  return measured.ok() ? ended : measured;
}

// (c) Rank 0 measures for what ran so far and has no choice yet, and every rank gets its choices.
absl::Status MeasureGemms(Machine& world, CudaRank& rank, CostFile& file) {
  constexpr absl::string_view kPhase = "choosing kernels";
  kernels::CudaKernels& compute = rank.lanes().compute_kernels();
  REPRISE_RETURN_IF_ERROR(BesideCopies(world, rank, [&]() -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(file, FromRank0(world, rank, kPhase, [&]() -> absl::StatusOr<std::string> {
                               REPRISE_RETURN_IF_ERROR(compute.Tune());
                               file.gemms = compute.choices();
                               return ToJson(file);
                             }));
    return absl::OkStatus();
  }));
  return world.Agree(kPhase, compute.Choose(file.gemms), {});
}

}  // namespace

absl::StatusOr<CostFile> FileFor(int device, const LaunchEnvironment& launch) {
  cudaDeviceProp properties;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, device), "asking for the device"));
  int driver = 0, nccl = 0;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaDriverGetVersion(&driver), "asking for the driver's version"));
  REPRISE_RETURN_IF_ERROR(NcclStatus(ncclGetVersion(&nccl), "asking for NCCL's version"));
  CostFile file;
  file.device = {{"gpu", absl::StrCat(properties.name, ", ", properties.multiProcessorCount, " multiprocessors")},
                 {"driver", absl::StrCat("CUDA ", driver / 1000, ".", driver % 1000 / 10)},
                 {"cublaslt", absl::StrCat(kernels::CublasLtVersion())}};
  // Hosts may have other numbers of ranks.
  file.job = {{"nccl", NcclVersionName(nccl)},
              {"ranks", absl::StrCat(launch.size)},
              {"hosts", launch.local_size == launch.size ? "one" : "several"},
              {"nccl_settings", absl::StrJoin(launch.nccl_settings, " ")}};
  return file;
}

absl::StatusOr<AutoTransports> UseCostFile(Machine& world, CudaRank& rank, const CostFile& here,
                                           const std::string& path) {
  const CallerState caller(rank.device());
  constexpr absl::string_view kPhase = "reading the cost file";
  REPRISE_ASSIGN_OR_RETURN(CostFile file, FromRank0(world, rank, kPhase, [&]() -> absl::StatusOr<std::string> {
                             REPRISE_ASSIGN_OR_RETURN(const CostFile read, ReadCostFile(path));
                             return ToJson(read);
                           }));
  const auto none = [&](absl::string_view why) {
    return AutoTransports{.reason = absl::StrCat("the default: cost file ", path, " ", why)};
  };
  std::string difference = DifferenceOf(file.device, here.device);
  if (difference.empty()) {
    absl::Status status = rank.lanes().compute_kernels().Choose(file.gemms);
    if (!status.ok()) {
      status = absl::Status(status.code(), absl::StrCat("cost file ", path, ", gemms: ", std::string(status.message()),
                                                        "; remove this entry"));
    }
    REPRISE_RETURN_IF_ERROR(world.Agree(kPhase, status, {}));
    difference = DifferenceOf(file.job, here.job);
  }
  if (!difference.empty()) return none(absl::StrCat("is of another machine: ", difference));
  if (file.transports.empty()) return none("has no transports");
  REPRISE_ASSIGN_OR_RETURN(const std::string why, WhyNoWindows(world, rank));
  if (!why.empty()) return AutoTransports{.reason = absl::StrCat("no other can be used: ", why)};
  return AutoTransports{std::move(file.transports), absl::StrCat("of cost file ", path)};
}

absl::StatusOr<AutoTransports> MeasureChoices(
    Machine& world, CudaRank& rank, const MeasureOptions& options,
    absl::FunctionRef<absl::StatusOr<TransportTimes>(Progress)> try_transports, CostFile& file) {
  const CallerState caller(rank.device());
  const auto progress = [&](absl::string_view line) {
    if (options.progress) options.progress(line);
  };
  if (options.run) REPRISE_RETURN_IF_ERROR(options.run());
  REPRISE_RETURN_IF_ERROR(world.Agree("measuring", rank.queue().Wait(), {}));
  std::string why = "one rank has nothing to choose";
  if (rank.size() > 1) {
    REPRISE_ASSIGN_OR_RETURN(why, WhyNoWindows(world, rank));
    if (!why.empty()) why = absl::StrCat("no other can be used: ", why);
  }
  REPRISE_RETURN_IF_ERROR(MeasureGemms(world, rank, file));
  progress(absl::StrCat("kernels of ", file.gemms.size(), " GEMMs"));
  if (!why.empty()) return AutoTransports{.reason = why};
  REPRISE_ASSIGN_OR_RETURN(const TransportTimes times, try_transports(progress));
  if (times.empty()) return AutoTransports{.reason = "too little memory to measure others"};
  file.transports = ChooseTransports(times);
  return AutoTransports{file.transports, "measured"};
}

}  // namespace reprise::internal
