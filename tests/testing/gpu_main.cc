// main of tests that need devices. With --ranks=N, N more than 1, it starts itself once per rank. Where there are too
// few devices the test is skipped, or fails if REPRISE_REQUIRE_GPU is 1.
#include <cstdlib>
#include <iostream>
#include <string>

#include "gtest/gtest.h"
#include "reprise/graph/cuda_world.h"
#include "reprise/graph/launch_environment.h"
#include "reprise/graph/local_launch.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int ranks = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--ranks=", 0) == 0) ranks = std::atoi(argument.c_str() + 8);
  }
  // Before NCCL is first used, see README: graphs without nodes for mixing with eager collectives.
  setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", /*overwrite=*/0);
  setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/0);
  const int devices = reprise::NumCudaDevices();
  if (devices < ranks) {
    const char* const required = std::getenv("REPRISE_REQUIRE_GPU");
    const bool fails = required != nullptr && std::string(required) == "1";
    std::cout << (fails ? "[  FAILED  ] " : "[  SKIPPED ] ") << "needs " << ranks << " CUDA devices, found " << devices
              << std::endl;
    return fails ? 1 : 0;
  }
  const absl::StatusOr<reprise::LaunchEnvironment> launch = reprise::DetectLaunch();
  if (ranks == 1 || (launch.ok() && launch->launcher == reprise::Launcher::kReprise)) return RUN_ALL_TESTS();
  const absl::StatusOr<reprise::LocalRun> run = reprise::RunLocalRanks({.ranks = ranks});
  std::cerr << (run.ok() ? run->message : run.status().ToString()) << std::endl;
  return run.ok() ? run->exit_code : 1;
}
