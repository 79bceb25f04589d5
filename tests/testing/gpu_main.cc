// main of tests that need devices. With --ranks=N, N more than 1, it starts itself once per rank. Where there are too
// few devices the test is skipped, or fails if REPRISE_REQUIRE_GPU is 1. With REPRISE_TEST_SHARE_DEVICE=1 one device is
// enough for all ranks, and --hosts=H makes ranks believe that they are on H hosts (see tests/README.md).
#include <nccl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "reprise/graph/cuda_world.h"
#include "reprise/graph/launch_environment.h"
#include "reprise/graph/local_launch.h"
#include "tests/testing/share_device.h"

namespace {

void Set(const char* name, const std::string& value) { setenv(name, value.c_str(), /*overwrite=*/0); }

// Why the test cannot run here; empty if it can.
std::string WhyNot(int ranks, int hosts) {
  const int devices = reprise::NumCudaDevices();
  if (!reprise::testing::SharesDevice()) {
    if (hosts > 1) return "several hosts are tried by REPRISE_TEST_SHARE_DEVICE=1 alone";
    return devices < ranks ? absl::StrCat("needs ", ranks, " CUDA devices, found ", devices) : "";
  }
  if (devices < 1) return "needs a CUDA device, found none";
  int version = 0;
  ncclGetVersion(&version);
  constexpr int kFirstVersion = 23000;  // see CudaWorldOptions::share_device
  if (ranks / hosts <= devices || version >= kFirstVersion) return "";
  return absl::StrCat("needs NCCL 2.30 for several ranks of a host on one device, found ", version);
}

// Makes this process, rank r of all on this host, one of the ranks of host r / (ranks / hosts).
void PlaceOnHosts(const reprise::LaunchEnvironment& launch, int hosts) {
  const int per_host = launch.size / hosts;
  setenv("REPRISE_LOCAL_RANK", absl::StrCat(launch.rank % per_host).c_str(), 1);
  setenv("REPRISE_LOCAL_SIZE", absl::StrCat(per_host).c_str(), 1);
  setenv("REPRISE_HOST", "localhost", 1);
  setenv("NCCL_HOSTID", absl::StrCat("host", launch.rank / per_host).c_str(), 1);
  Set("NCCL_SOCKET_IFNAME", "lo");
}

int Flag(const std::string& argument, const std::string& name, int otherwise) {
  return argument.rfind(name, 0) == 0 ? std::atoi(argument.c_str() + name.size()) : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int ranks = 1, hosts = 1;
  for (int i = 1; i < argc; ++i) {
    ranks = Flag(argv[i], "--ranks=", ranks);
    hosts = Flag(argv[i], "--hosts=", hosts);
  }
  // Before NCCL is first used, see README: graphs without nodes for mixing with eager collectives.
  Set("NCCL_GRAPH_MIXING_SUPPORT", "0");
  Set("NCCL_GRAPH_REGISTER", "0");
  if (reprise::testing::SharesDevice()) {
    Set("NCCL_MULTI_RANK_GPU_ENABLE", "1");
    Set("NCCL_MAX_CTAS", "8");  // collectives of processes that take turns are no faster with more
  }
  const std::string why_not = WhyNot(ranks, hosts);
  if (!why_not.empty()) {
    const char* const required = std::getenv("REPRISE_REQUIRE_GPU");
    const bool fails = required != nullptr && std::string(required) == "1";
    std::cout << (fails ? "[  FAILED  ] " : "[  SKIPPED ] ") << why_not << std::endl;
    return fails ? 1 : 0;
  }
  const absl::StatusOr<reprise::LaunchEnvironment> launch = reprise::DetectLaunch();
  const bool is_rank = launch.ok() && launch->launcher == reprise::Launcher::kReprise;
  if (is_rank && hosts > 1) PlaceOnHosts(*launch, hosts);
  if (ranks == 1 || is_rank) return RUN_ALL_TESTS();
  const absl::StatusOr<reprise::LocalRun> run = reprise::RunLocalRanks({.ranks = ranks});
  std::cerr << (run.ok() ? run->message : run.status().ToString()) << std::endl;
  return run.ok() ? run->exit_code : 1;
}
