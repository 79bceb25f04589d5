#include "examples/common/world.h"

#include <cstdlib>
#include <iostream>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "examples/common/output.h"
#include "reprise/core/status_macros.h"
#include "reprise/graph/host_world.h"
#include "reprise/graph/launch_environment.h"
#include "reprise/graph/local_launch.h"
#ifdef REPRISE_EXAMPLES_CUDA
#include "reprise/graph/cuda_world.h"
#endif

ABSL_FLAG(reprise::examples::Device, device, reprise::examples::Device::kAuto,
          "auto, host or cuda; auto: GPUs if there is one for each rank, or one for all with --share_device");
ABSL_FLAG(int, ranks, 0,
          "ranks that the model is sharded over; 0: what the launcher says; without one, all GPUs, or 2 host ranks");
ABSL_FLAG(std::string, costs, "",
          "on devices: cost file of step_bench --measure, for the quickest transports and GEMMs");
ABSL_FLAG(bool, share_device, false, "several ranks may use one GPU: for tests, never for speed");

namespace reprise::examples {
namespace {

struct ProgramOptions {
  Device device = Device::kAuto;
  int ranks = 0;
  std::string cost_file = {};
  bool share_device = false;
};

constexpr int kDefaultHostRanks = 2;

#ifdef REPRISE_EXAMPLES_CUDA
int NumDevices() { return NumCudaDevices(); }
// Is there one for this rank?
bool HasDevice(const LaunchEnvironment& launch, bool share_device) {
  return DeviceOf(launch, share_device) < NumCudaDevices();
}

// Before NCCL is first used. Without nodes for mixing graphs with eager collectives a launch takes 5 us instead of 20.
void ChooseNcclSettings(bool share_device) {
  setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", /*overwrite=*/0);
  setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/0);
  if (share_device) setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", /*overwrite=*/0);
}

absl::StatusOr<std::shared_ptr<World>> OpenDevice(const LaunchEnvironment& launch, const ProgramOptions& options) {
  return CreateCudaWorld(launch, {.cost_file = options.cost_file, .share_device = options.share_device});
}
absl::StatusOr<std::shared_ptr<World>> OpenDeviceAlone(const LaunchEnvironment& launch, const ProgramOptions& options) {
  return CreateCudaWorld({}, {.device = DeviceOf(launch, options.share_device),
                              .cost_file = options.cost_file,
                              .share_device = options.share_device});
}
#else
int NumDevices() { return 0; }
bool HasDevice(const LaunchEnvironment&, bool) { return false; }
void ChooseNcclSettings(bool) {}

absl::StatusOr<std::shared_ptr<World>> OpenDevice(const LaunchEnvironment&, const ProgramOptions&) {
  return absl::UnavailableError("this program was built without CUDA; build it where the toolkit and NCCL are");
}
absl::StatusOr<std::shared_ptr<World>> OpenDeviceAlone(const LaunchEnvironment& launch, const ProgramOptions& options) {
  return OpenDevice(launch, options);
}
#endif

absl::StatusOr<Program> StartHost(int ranks) {
  Program program;
  REPRISE_ASSIGN_OR_RETURN(program.world, CreateHostWorld({.size = ranks == 0 ? kDefaultHostRanks : ranks}));
  program.new_world_alone = [] { return CreateHostWorld({.size = 1}); };
  std::cout << program.world->size() << " host ranks in one process\n";
  REPRISE_RETURN_IF_ERROR(CheckOutput());
  return program;
}

}  // namespace

bool AbslParseFlag(absl::string_view text, Device* device, std::string* error) {
  for (const Device candidate : {Device::kAuto, Device::kHost, Device::kCuda}) {
    if (text != AbslUnparseFlag(candidate)) continue;
    *device = candidate;
    return true;
  }
  *error = "must be auto, host or cuda";
  return false;
}

std::string AbslUnparseFlag(Device device) {
  switch (device) {
    case Device::kAuto:
      return "auto";
    case Device::kHost:
      return "host";
    case Device::kCuda:
      return "cuda";
  }
  return "";
}

absl::StatusOr<Program> StartProgram() {
  const ProgramOptions options = {.device = absl::GetFlag(FLAGS_device),
                                  .ranks = absl::GetFlag(FLAGS_ranks),
                                  .cost_file = absl::GetFlag(FLAGS_costs),
                                  .share_device = absl::GetFlag(FLAGS_share_device)};
  if (options.ranks < 0) {
    return absl::InvalidArgumentError(absl::StrCat("--ranks is ", options.ranks, " but must be at least 0"));
  }
  ChooseNcclSettings(options.share_device);
  REPRISE_ASSIGN_OR_RETURN(const LaunchEnvironment launch, DetectLaunch());
  const bool launched = launch.launcher != Launcher::kNone;
  if (launched && options.ranks != 0 && options.ranks != launch.size) {
    return absl::InvalidArgumentError(absl::StrCat("--ranks is ", options.ranks, ", but ", ToString(launch),
                                                   "; leave the flag out under a launcher"));
  }
  const int devices = NumDevices();
  const bool fits = launched ? HasDevice(launch, options.share_device)
                             : devices > 0 && (options.share_device || options.ranks <= devices);
  const bool use_device = options.device == Device::kCuda || (options.device == Device::kAuto && fits);
  if (!use_device && launched && launch.size > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        ToString(launch), ", but host ranks share one process; start the program once with --ranks=", launch.size));
  }
  if (!use_device && !options.cost_file.empty()) {
    return absl::InvalidArgumentError("--costs is for devices, and these are host ranks; leave it out");
  }
  if (!use_device) return StartHost(options.ranks);
  Program program;
  const int ranks = options.ranks == 0 ? devices : options.ranks;
  if (!launched && ranks > 1) {
    REPRISE_ASSIGN_OR_RETURN(const LocalRun run, RunLocalRanks({.ranks = ranks}));
    if (!run.message.empty()) std::cerr << run.message << "\n";
    program.exit_code = run.exit_code;
    return program;
  }
  program.prints = launch.rank == 0;
  if (program.prints) {
    std::cout << ToString(launch) << "\n";
    REPRISE_RETURN_IF_ERROR(CheckOutput());
  }
  REPRISE_ASSIGN_OR_RETURN(program.world, OpenDevice(launch, options));
  program.new_world_alone = [launch, options] { return OpenDeviceAlone(launch, options); };
  return program;
}

}  // namespace reprise::examples
